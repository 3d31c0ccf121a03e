package grpclayer

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/resolver"
)

// OverrideAuthority is asked by gRPC, once for a ClientConn. It says what gRPC
// says itself, but that the name of SRV records becomes that of the domain.
func (*resolverBuilder) OverrideAuthority(target resolver.Target) string {
	return authority(domainOf(target.Endpoint()))
}

// authority is what gRPC says of a name.
func authority(name string) string {
	if strings.HasPrefix(name, ":") {
		name = "localhost" + name
	}
	return escaped(name)
}

// domainOf returns the domain of the name of SRV records: of
// _service._proto.domain (RFC 2782). Any other name is its own.
func domainOf(name string) string {
	service, rest, _ := strings.Cut(name, ".")
	proto, domain, _ := strings.Cut(rest, ".")
	if strings.HasPrefix(service, "_") && strings.HasPrefix(proto, "_") && domain != "" {
		return domain
	}
	return name
}

// escaped is s as an authority may have it (RFC 3986, section 3.2).
func escaped(s string) string {
	var b strings.Builder
	begun := 0 // what comes before is in b
	for i := range len(s) {
		if !inAuthority(s[i]) {
			fmt.Fprintf(&b, "%s%%%02X", s[begun:i], s[i])
			begun = i + 1
		}
	}
	if begun == 0 {
		return s
	}
	b.WriteString(s[begun:])
	return b.String()
}

func inAuthority(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("-_.~!$&'()*+,;=:[]@", c) >= 0
}
