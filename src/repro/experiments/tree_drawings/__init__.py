"""Drawings of token trees and attention masks."""
