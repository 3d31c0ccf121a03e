// Package top shows requests in several processes as a table. On a terminal the table is
// interactive. Elsewhere it is printed repeatedly.
//
//	processes ─▶ tap.FollowTop ─▶ rows ──────┬─▶ Live: on a terminal, or printed
//	                                         └─▶ Write, WriteJSON
//	          ─▶ tap.Follow ─▶ requests of one row ─▶ one request
//
// Unprintable characters in request texts are escaped before they are printed, because the texts
// come from untrusted clients.
package top
