// Package secret detects header fields that may have credentials.
package secret

import "strings"

// Withheld replaces a hidden value.
const Withheld = "[redacted]"

// Field reports whether the value of a field may be a credential. It checks the
// name, which must be in lower case: authorization and cookie, names that end
// in one of them, such as set-cookie, and names with key, token, secret,
// password or credential, such as x-api-key. It is valid for query parameters,
// too.
func Field(name string) bool {
	for _, word := range [...]string{"key", "token", "secret", "password", "credential"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	name = strings.TrimSuffix(name, "-bin") // gRPC's suffix of binary values
	name = name[strings.LastIndexAny(name, "-:")+1:]
	return name == "authorization" || name == "cookie"
}
