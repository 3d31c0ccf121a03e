// Package top shows the requests of several processes as a table that changes:
// as a program on a terminal, and as text that is printed again and again
// anywhere else.
//
//	processes ─▶ tap.FollowTop ─▶ rows ──────┬─▶ Live: on a terminal, or printed
//	                                         └─▶ Write, WriteJSON
//	          ─▶ tap.Follow ─▶ requests of one row ─▶ one request
//
// What is seen was written by whoever made the requests: all of it is cleaned
// before a terminal sees it.
package top
