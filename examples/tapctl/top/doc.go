// Package top shows the requests of several processes as a table. On a terminal it is an
// interactive program. Elsewhere it prints the table repeatedly.
//
//	processes ─▶ tap.FollowTop ─▶ rows ──────┬─▶ Live: on a terminal, or printed
//	                                         └─▶ Write, WriteJSON
//	          ─▶ tap.Follow ─▶ requests of one row ─▶ one request
//
// All text of requests is cleaned before it is printed, because it is not trusted.
package top
