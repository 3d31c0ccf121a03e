package outbound

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer/httplayer"
)

// overrideHeader specifies a target other than the authority. The application sets it, and the
// proxy removes it before it sends the request.
const overrideHeader = "L5d-Dst-Override"

// origProtoHeader marks an HTTP/1 request that one proxy sends to another over HTTP/2, see
// [mesh.UpgradeOrigProto]. The application must not set it, so it is removed.
const origProtoHeader = "L5d-Orig-Proto"

// Authority is the target that a request specifies: a name in lower case or an IP address, and a
// port. Unlike a string, it can be made without an allocation for each request, and still be a
// cache key.
type Authority struct {
	Host string // without brackets around an IPv6 address
	Port uint16
}

// String returns host:port, with brackets around an IPv6 address.
func (a Authority) String() string { return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port))) }

// Target returns the target that req specifies with l5d-dst-override, or else with its authority or
// Host. The default port is 80.
func Target(req *http.Request) (Authority, error) {
	// The cache of targets must not refer to a part of the headers, because that would keep all of
	// them in memory.
	name := strings.Clone(req.Header.Get(overrideHeader))
	field := "l5d-dst-override"
	if name == "" {
		name, field = httplayer.HTTP{}.Authority(req), "host"
	}
	if name == "" {
		return Authority{}, errors.New("the request has no host")
	}
	host, port := split(name)
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Authority{}, fmt.Errorf("%s %q: the port must be from 1 to 65535", field, name)
	}
	// Most names cannot be addresses, which saves a failing parse.
	if mayBeAddr(host) {
		// IPv6 needs brackets, as the port could otherwise not be told apart, and IPv4 must have none.
		if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() == "" && strings.Contains(name, "[") == ip.Is6() {
			return Authority{ip.String(), uint16(n)}, nil
		}
	}
	host = strings.TrimSuffix(host, ".")
	// A second dot at the end, or one of these characters, cannot belong to a name.
	if host == "" || strings.HasSuffix(host, ".") || strings.ContainsAny(host, ":/@[] \t") {
		return Authority{}, fmt.Errorf("%s %q: must be name or name:port, with brackets around an IPv6 address", field, name)
	}
	return Authority{strings.ToLower(host), uint16(n)}, nil
}

// mayBeAddr reports whether host's characters allow an IP address. It is false for most names, and
// saves a call to netip.ParseAddr, which allocates an error for each name.
func mayBeAddr(host string) bool {
	return host != "" && (strings.Contains(host, ":") || '0' <= host[len(host)-1] && host[len(host)-1] <= '9')
}

// split splits name into host and port, which is 80 by default. It removes the brackets around an
// IPv6 address.
func split(name string) (host, port string) {
	if !strings.Contains(name, ":") {
		return name, "80"
	}
	if host, port, err := net.SplitHostPort(name); err == nil {
		return host, port
	}
	// An IPv6 address without a port still has brackets.
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		name = name[1 : len(name)-1]
	}
	return name, "80"
}
