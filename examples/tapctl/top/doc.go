// Package top shows the requests of several processes as a table that changes:
// as a program on a terminal, and as text that is printed again and again
// anywhere else.
//
//	processes ─▶ tap.FollowTop ─▶ rows ──────┬─▶ Live: on a terminal, or printed
//	                                         └─▶ Write, WriteJSON
//	          ─▶ tap.Follow ─▶ requests of one row ─▶ one request
//
// All text of requests is cleaned before it is printed, because it is not trusted.
package top
