# The tests whose outcome may depend on the host, run again as other hosts. Sourced by test.sh, from the checkout's root.

HOSTS=(avx2 c_locale)
SLOW_HOSTS=(x86_64_v2) # every night

# Sums, kernels and whole models.
COMPUTING_TESTS=(
    tests/metrics
    tests/reports/test_{tables,intervals,errors}.py
    tests/models/test_{parity,memo,families,linear,side_by_side,branches,session}.py
    tests/models/test_{stream,likelihood,calibration,elastic}.py
    tests/methods/test_{compression_groups,compression_int8,specinfer,gaps,tree_attention}.py
    tests/methods/test_{sparing,tree_kernels,hcmp}.py
)

# What reads and writes files, and names them.
NAMING_TESTS=(tests/records tests/reports/test_{readme,print}.py tests/experiments/test_{overrides,check,tracking}.py)

# What also depends on the encoding of text, and on the time zone.
WRITING_TESTS=(
    "${NAMING_TESTS[@]}"
    tests/metrics
    tests/reports/test_{tables,figures,errors}.py
    tests/models/test_{memo,stream,elastic}.py
    tests/methods/test_specinfer.py
)

# as_host HOST PYTEST...: runs tests as another host. The libraries choose their code by these variables: OpenBLAS,
# torch, oneDNN, numpy and numba. `avx2` has folders with a space and an umlaut too, `c_locale` no UTF-8; both have
# another time zone and order of sets. Checkpoints stay where they are.
as_host() {
    local host=$1 home cache=${REPRO_CACHE:-$HOME/.cache/repro} status=0
    shift
    case $host in
        avx2)
            home="$(mktemp -d)/a home ü"
            mkdir -p "$home/tmp dir"
            env LC_ALL=C.UTF-8 TZ=Pacific/Apia PYTHONHASHSEED=12345 HOME="$home" TMPDIR="$home/tmp dir" \
                REPRO_CACHE="$cache" OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 \
                NUMBA_CPU_NAME=haswell NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR" \
                "$@" "${COMPUTING_TESTS[@]}" "${NAMING_TESTS[@]}" tests/experiments/test_committed.py || status=$?
            rm -rf "$(dirname "$home")"
            return "$status"
            ;;
        x86_64_v2)
            env OPENBLAS_CORETYPE=Prescott ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 NUMBA_CPU_NAME=generic \
                NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" "$@" "${COMPUTING_TESTS[@]}"
            ;;
        c_locale)
            env LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 TZ=Asia/Kolkata PYTHONHASHSEED=1 "$@" "${WRITING_TESTS[@]}"
            ;;
        *)
            echo "error: there is no host $host; choices: ${HOSTS[*]} ${SLOW_HOSTS[*]}" >&2
            return 2
            ;;
    esac
}
