// Package static resolves names from a table in memory that the program modifies.
//
//	Set(target, …) ─┐
//	Delete(target) ─┴▶ Resolver ──▶ each stream of that target: its endpoints,
//	                                and again after each change
//
// It is typically used in tests, for a fixed list of servers, and to connect a custom source of
// endpoints.
package static
