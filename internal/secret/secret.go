// Package secret detects header fields that may have credentials.
package secret

import "strings"

// Withheld is the text that replaces a value that may be a credential.
const Withheld = "[redacted]"

// Field reports whether the value of a header field or query parameter may be a credential.
// name must be in lower case. Field returns true if the last word of name is authorization,
// cookie or sig, as in set-cookie. It also returns true if name contains key, token, secret,
// password, passwd, credential, session, signature or jwt, as in x-api-key.
func Field(name string) bool {
	for _, word := range [...]string{"key", "token", "secret", "password", "passwd", "credential", "session", "signature", "jwt"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	name = strings.TrimSuffix(name, "-bin") // gRPC's suffix of binary values
	name = name[strings.LastIndexAny(name, "-:")+1:]
	return name == "authorization" || name == "cookie" || name == "sig"
}
