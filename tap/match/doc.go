// Package match makes conditions on tapped requests:
//
//	match.All(match.Method("POST"), match.PathPrefix("/api/"), match.Not(match.Authority("health")))
//
// Each function returns a message of linkerd's tap API. The process that
// receives it checks it, and answers InvalidArgument with the wrong field.
package match
