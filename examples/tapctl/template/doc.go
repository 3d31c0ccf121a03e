// Package template prints what somebody wants to know of objects, as kubectl -o
// jsonpath does:
//
//	{.requestInitEvent.method} {.requestInitEvent.path}
//	 └──── from the object ──┘│└──── from the object ─┘
//	                          └ as it stands
//
// The language is that of k8s.io/client-go/util/jsonpath. A single field needs
// no braces and no dot: requestInitEvent.path is {.requestInitEvent.path}, as in
// linkerd's tap.
//
// A template is for a stream of objects. It ends with a new line, whether that
// is in it or not, and an object that has nothing of what it asks for prints
// nothing, not even what is around it. What no object can have is a mistake,
// which [Parse] tells.
//
// Objects are written by anybody, and a terminal obeys what it is sent: what is
// not printable in them is escaped. The template is the user's own; what is in
// there is printed.
package template
