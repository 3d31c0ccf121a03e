// Package secret knows which header fields are not for everybody who may look
// at requests.
package secret

import "strings"

// Withheld stands for what is not shown.
const Withheld = "[redacted]"

// Field reports whether the value of a field may be a credential, by the name of the
// field: Authorization and Cookie, names that end in one of them, such as
// Proxy-Authorization, Set-Cookie and grpcgateway-authorization, and names that
// contain key, token, secret, password or credential, such as X-Api-Key. It holds
// for the names of query parameters, too. Name is in lower case.
func Field(name string) bool {
	for _, word := range [...]string{"key", "token", "secret", "password", "credential"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	name = strings.TrimSuffix(name, "-bin") // gRPC's mark of values that are no text
	name = name[strings.LastIndexAny(name, "-:")+1:]
	return name == "authorization" || name == "cookie"
}
