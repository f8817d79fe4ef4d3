"""Token trees and attention masks, drawn."""
