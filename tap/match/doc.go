// Package match writes the conditions under which a request is tapped:
//
//	match.All(match.Method("POST"), match.PathPrefix("/api/"), match.Not(match.Authority("health")))
//
// Each function makes a message of linkerd's tap API. Whether it makes sense
// is for the process to say that is asked to tap: it answers InvalidArgument
// and names the part that is wrong.
package match
