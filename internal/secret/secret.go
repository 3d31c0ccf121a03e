// Package secret knows which header fields are not for everybody who may look
// at requests.
package secret

import "strings"

// Withheld stands for what is not shown.
const Withheld = "[redacted]"

// Field reports whether the value of a field gives who knows it the rights of
// somebody else: Authorization and Cookie, and what is called after them, such
// as Proxy-Authorization, Set-Cookie and the grpcgateway-authorization of
// grpc-gateway, or a trailer that net/http was told of in a header. Name is in
// lower case.
func Field(name string) bool {
	name = strings.TrimSuffix(name, "-bin") // gRPC's mark of values that are no text
	name = name[strings.LastIndexAny(name, "-:")+1:]
	return name == "authorization" || name == "cookie"
}
