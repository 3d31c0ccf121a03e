package grpclayer

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/resolver"
)

// OverrideAuthority is asked by gRPC, once for a ClientConn. It says what gRPC
// says itself, but that the name of SRV records becomes that of the domain.
func (*resolverBuilder) OverrideAuthority(target resolver.Target) string {
	authority := domainOf(target.Endpoint())
	if strings.HasPrefix(authority, ":") {
		authority = "localhost" + authority
	}
	return escaped(authority)
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
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_.~!$&'()*+,;=:[]@", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
