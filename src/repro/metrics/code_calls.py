"""Calls from the process of a task's tests to the process of an answer, as lines of text.

Owns both ends. Their source is sent to isolated processes (`isolation`), so it imports the standard library
only. The tests see of an answer nothing but values of plain built-in types, made anew from text; any other
object stays in the answer's process, and tests may hold it, pass it back, and set and read its attributes.
"""

from __future__ import annotations

import ast
import builtins
import collections
import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, GeneratorType
from typing import Any, NoReturn, Protocol

MAPPINGS = (dict, collections.Counter, collections.OrderedDict, collections.defaultdict)
LAZY: tuple[type, ...] = (map, filter, zip, enumerate, reversed, GeneratorType, type(iter([])))
MOST_ITEMS = 100_000
"""Values of an iterator that are sent."""

COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
    "iterator": iter,
}
TEXTS: dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (hex, lambda text: int(text, 16)),
    "float": (float.hex, float.fromhex),
    "bytes": (lambda value: value.decode("latin-1"), lambda text: text.encode("latin-1")),
    "bytearray": (lambda value: value.decode("latin-1"), lambda text: bytearray(text, "latin-1")),
}


class CallEnd(Protocol):
    """One end of the line between both processes."""

    def hold(self, value: Any) -> list[Any]:
        """What stands in text for an object that is not plain."""

    def lookup(self, kind: str, place: Any) -> Any:
        """The object that this text stands for."""


def encode(value: Any, end: CallEnd) -> Any:
    """A value as JSON: plain types by value, exactly these types and no subclass of theirs."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if value is ...:
        return ["ellipsis", None]
    if kind.__name__ in TEXTS and kind is getattr(builtins, kind.__name__):
        return [kind.__name__, TEXTS[kind.__name__][0](value)]
    if is_builtin(value):
        return ["builtin", value.__name__]
    parts: Iterable[Any]
    if kind in (list, tuple, set, frozenset):
        name, parts = kind.__name__, value
    elif kind in MAPPINGS:
        name, parts = "dict", list(value.items())
    elif kind is complex:
        name, parts = "complex", (value.real, value.imag)
    elif kind is range:
        name, parts = "range", (value.start, value.stop, value.step)
    elif kind in LAZY:
        name, parts = "iterator", itertools.islice(value, MOST_ITEMS)
    else:
        return end.hold(value)
    return [name, [encode(part, end) for part in parts]]


def decode(value: Any, end: CallEnd) -> Any:
    """The value of what `encode` wrote."""
    if value is None or type(value) in (bool, str):
        return value
    kind, content = value
    if kind == "ellipsis":
        return ...
    if kind in TEXTS:
        return TEXTS[kind][1](content)
    if kind in COLLECTIONS:
        return COLLECTIONS[kind]([decode(part, end) for part in content])
    if kind == "builtin" and is_builtin(found := getattr(builtins, content)):
        return found
    return end.lookup(kind, content)


def is_builtin(value: Any) -> bool:
    """Whether a value is a type or function that Python has without an import."""
    named = type(value) in (type, BuiltinFunctionType)
    return named and value.__module__ == "builtins" and getattr(builtins, value.__name__, None) is value


class Channel:
    """Messages of one process to the other and back, each a line of JSON."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = open(reader, encoding="ascii")  # noqa: SIM115  # as long as the process
        self._writer = open(writer, "w", encoding="ascii")  # noqa: SIM115
        self.objects: list[Any] = []

    def send(self, *message: Any) -> None:
        """Send a message; the lines in between belong to calls within a call."""
        self._writer.write(json.dumps(message) + "\n")
        self._writer.flush()

    def receive(self) -> list[Any] | None:
        """The next message; None if the other process has ended."""
        line = self._reader.readline()
        message: list[Any] | None = json.loads(line) if line else None
        return message

    def place(self, value: Any) -> int:
        """The number under which an object is held for the other process."""
        for number, held in enumerate(self.objects):
            if held is value:
                return number
        self.objects.append(value)
        return len(self.objects) - 1


def error_of(name: str, message: str) -> Exception:
    """The built-in exception of a name; those that end loops without a word are a RuntimeError."""
    kind = getattr(builtins, name)
    if not issubclass(kind, Exception) or issubclass(kind, (StopIteration, StopAsyncIteration)):
        if not issubclass(kind, Exception):
            raise TypeError(name)
        kind = RuntimeError
    error: Exception = kind.__new__(kind, message)
    error.args = (message,)
    return error


def raised(error: BaseException) -> tuple[str, str, str]:
    """The message for an exception: its next built-in type, and its text."""
    names = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
    return "raise", names[0], str(error)


class AnswerEnd:
    """The answer's end: it runs the code, then does what the tests ask for."""

    def __init__(self, channel: Channel, code: str) -> None:
        self._channel = channel
        self._names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(code, "answer", "exec", dont_inherit=True), self._names)

    def hold(self, value: Any) -> list[Any]:
        """See `CallEnd`."""
        return ["answer", self._channel.place(value)]

    def lookup(self, kind: str, place: Any) -> Any:
        """See `CallEnd`; a function of the tests is one that asks them."""
        if kind == "tests":
            return lambda *arguments: self._ask(place, arguments)
        if kind == "name":
            return self._names[place] if place in self._names else getattr(builtins, place)
        return self._channel.objects[place]

    def serve(self) -> None:
        """Answer requests until the tests have ended."""
        while message := self._channel.receive():
            self._serve(message)

    def _serve(self, message: list[Any]) -> None:
        _, action, target, arguments = message
        try:
            values = [decode(value, self) for value in arguments]
            keywords = values.pop() if action == "call" else {}
            value = ACTIONS[action](decode(target, self), *values, **keywords)
            after = [encode(value, self) for value in (*values, keywords)] if action == "call" else arguments
            reply = ("value", encode(value, self), None if after == arguments else after)
        except BaseException as error:
            self._channel.send(*raised(error))
        else:
            self._channel.send(*reply)

    def _ask(self, place: Any, arguments: tuple[Any, ...]) -> Any:
        self._channel.send("call", place, [encode(value, self) for value in arguments])
        while (message := self._channel.receive()) and message[0] == "ask":
            self._serve(message)
        assert message is not None, "the tests have ended"
        if message[0] == "raise":
            raise error_of(*message[1:])
        return decode(message[1], self)


ACTIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, *arguments, **keywords: target(*arguments, **keywords),
    "get": getattr,
    "set": setattr,
}


class Held:
    """An object of the answer's process, of which the tests know nothing."""

    __slots__ = ("_ask", "_target")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, ask: Callable[..., Any], target: list[Any]) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_target", target)

    def __getattr__(self, name: str) -> Any:
        return self._ask("get", self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", self._target, name, value)

    def __eq__(self, other: object) -> bool:
        fail("a test compares an object of the answer that has no plain built-in type")

    def __bool__(self) -> bool:
        fail("a test takes an object of the answer for true that has no plain built-in type")


class NamedHeld(Held):
    """A function or class of the answer, which tests may call."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call it in the answer's process."""
        return self._ask("call", self._target, *arguments, keywords)


class TestsEnd:
    """The tests' end: what they call by a name of the answer's asks the answer's process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def hold(self, value: Any) -> list[Any]:
        """See `CallEnd`; of the tests' own objects, the answer gets functions alone."""
        if isinstance(value, Held):
            return list(object.__getattribute__(value, "_target"))
        if type(value) is not FunctionType:
            fail(f"a test passes a {type(value).__name__}, which has no text")
        return ["tests", self._channel.place(value)]

    def lookup(self, kind: str, place: Any) -> Any:
        """See `CallEnd`."""
        if kind == "tests":
            return self._channel.objects[place]
        return Held(self.ask, [kind, place])

    def ask(self, action: str, target: list[Any], *arguments: Any) -> Any:
        """What the answer replies. What is no reply ends the tests: they have failed."""
        try:
            self._channel.send("ask", action, target, [encode(value, self) for value in arguments])
            while (message := self._channel.receive()) and message[0] == "call":
                self._call(*message[1:])
            if message is None:
                fail("the answer's process has ended")
            if message[0] == "raise":
                error = error_of(*message[1:])
            else:
                error, value = None, decode(message[1], self)
                after = [decode(part, self) for part in message[2] or ()]
                for argument, changed in zip(arguments, after, strict=False):  # none where nothing changed
                    replace_content(argument, changed)
        except BaseException as broken:
            fail(f"the answer's reply is none: {type(broken).__name__}: {broken}")
        if error is not None:
            raise error
        return value

    def _call(self, place: int, arguments: list[Any]) -> None:
        try:
            value = self._channel.objects[place](*(decode(argument, self) for argument in arguments))
            reply = ("value", encode(value, self), None)
        except Exception as error:
            self._channel.send(*raised(error))
        else:
            self._channel.send(*reply)

    def run(self, before: str, function: str, tests: str) -> None:
        """Run tests, which see the names of the code before the answer; an exception if one fails."""
        names: dict[str, Any] = {"__name__": "__main__"}
        if prompt := compiled(before, f"{before}\n    pass\n"):
            exec(prompt, names)
        names |= {name: NamedHeld(self.ask, ["name", name]) for name in [function] if name}
        modules, others = missing_names(tests, names)
        names |= {name: importlib.import_module(name) for name in modules}
        names |= {name: NamedHeld(self.ask, ["name", name]) for name in others}
        exec(compile(tests, "tests", "exec", dont_inherit=True), names)
        if function:
            names["check"](names[function])


def compiled(*texts: str) -> Any:
    """The first text that is Python, as code; None if none is."""
    for text in texts:
        try:
            return compile(text, "prompt", "exec", dont_inherit=True)
        except SyntaxError:
            continue
    return None


def missing_names(tests: str, names: Iterable[str]) -> tuple[set[str], set[str]]:
    """Names that tests use and nobody has defined: modules of the standard library, and the answer's.

    A built-in name is the answer's if the tests call nothing else: its function may be called `sum`.
    """
    nodes = list(ast.walk(ast.parse(tests)))
    known = set(names)
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            known.add(node.id)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            known.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            known |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            known.add(node.name)
    free = {node.id for node in nodes if isinstance(node, ast.Name)} - known
    owners = {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    modules = free & owners & sys.stdlib_module_names
    others = free - modules - vars(builtins).keys()
    if not others and not set(names) - {"__name__", "__builtins__"}:
        called = [n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        others = set(called[:1]) & free
    return modules, others


def replace_content(old: Any, new: Any) -> None:
    """Give a list, dictionary, set or bytearray the content that the answer left it with."""
    if type(old) is not type(new):
        return
    if isinstance(old, (list, bytearray)):
        old[:] = new
    elif isinstance(old, (dict, set)):
        old.clear()
        old.update(new)


def fail(reason: str) -> NoReturn:
    """End the process of the tests at once, whatever exceptions they expect."""
    print(reason, file=sys.stderr, flush=True)
    os._exit(1)
