// Package template prints fields of objects, as kubectl -o jsonpath does:
//
//	{.requestInitEvent.method} {.requestInitEvent.path}
//	 └──── from the object ──┘│└──── from the object ─┘
//	                          └ literal text
//
// The language is the one of k8s.io/client-go/util/jsonpath. A template with a single field may
// omit the braces and the dot, as in linkerd's tap: requestInitEvent.path means
// {.requestInitEvent.path}.
//
// A template prints a stream of objects. Each object's output ends with a new line. An object
// with none of the fields prints nothing. [Parse] returns an error for a field that no object can
// have.
//
// Unprintable characters in objects are escaped, because they could control the terminal. The
// template's text itself is printed unchanged.
package template
