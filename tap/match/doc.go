// Package match builds conditions on the requests that package tap shows:
//
//	match.All(match.Method("POST"), match.PathPrefix("/api/"), match.Not(match.Authority("health")))
//
// Each function returns a message of linkerd's tap API. The process that receives the message
// validates it. It rejects an invalid message with InvalidArgument and the invalid field's name.
package match
