// Package static resolves names from a table in memory: addresses known from
// the start, or set by the program as it learns them.
//
//	Set(target, …) ─┐
//	Delete(target) ─┴▶ Resolver ──▶ each stream of that target: the table as
//	                                it is now, and again after each change
//
// It is the resolver for tests, for a fixed list of servers, and for gluing a
// source of your own to this library.
package static
