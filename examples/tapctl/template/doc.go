// Package template prints fields of objects, as kubectl -o jsonpath does:
//
//	{.requestInitEvent.method} {.requestInitEvent.path}
//	 └──── from the object ──┘│└──── from the object ─┘
//	                          └ literal text
//
// The language is that of k8s.io/client-go/util/jsonpath. A single field needs
// no braces and no dot: requestInitEvent.path is {.requestInitEvent.path}, as in
// linkerd's tap.
//
// A template is for a stream of objects. Each object ends with a new line. An object
// without any of the fields prints nothing. A field that no object can have is an
// error of [Parse].
//
// Characters of objects that are not printable are escaped, because they could
// control the terminal. The text of the template is printed unchanged.
package template
