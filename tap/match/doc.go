// Package match builds conditions on tapped requests:
//
//	match.All(match.Method("POST"), match.PathPrefix("/api/"), match.Not(match.Authority("health")))
//
// Each function returns a message of linkerd's tap API. The process that receives the
// message validates it, and returns InvalidArgument with the invalid field.
package match
