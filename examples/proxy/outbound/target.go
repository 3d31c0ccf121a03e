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

// overrideHeader is the header by which an application specifies a target other than the
// authority. The proxy removes the header before it sends the request.
const overrideHeader = "L5d-Dst-Override"

// origProtoHeader is the header by which linkerd's proxy marks an HTTP/1 request that it
// sends as HTTP/2. This proxy removes the header, because it sends requests in their
// original HTTP version.
const origProtoHeader = "L5d-Orig-Proto"

// Authority is the target that a request specifies: a name in lower case or an IP address,
// and a port. It is a comparable struct, so that it can be a cache key without an
// allocation of a string for each request.
type Authority struct {
	Host string // an IPv6 address has no brackets
	Port uint16
}

// String returns host:port, with brackets around an IPv6 address.
func (a Authority) String() string { return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port))) }

// Target returns the target that req specifies: the value of l5d-dst-override, or else the
// authority or Host. The default port is 80.
func Target(req *http.Request) (Authority, error) {
	// The value is cloned, because a substring in the cache of targets would keep all headers in memory.
	name, where := strings.Clone(req.Header.Get(overrideHeader)), "l5d-dst-override"
	if name == "" {
		name, where = httplayer.Accessor{}.Authority(req), "host"
	}
	if name == "" {
		return Authority{}, errors.New("the request has no host")
	}
	host, port := split(name)
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Authority{}, fmt.Errorf("%s %q: the port must be from 1 to 65535", where, name)
	}
	if mayBeAddr(host) {
		if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() == "" && strings.Contains(name, "[") == ip.Is6() {
			return Authority{ip.String(), uint16(n)}, nil
		}
	}
	host = strings.TrimSuffix(host, ".")
	if host == "" || strings.HasSuffix(host, ".") || strings.ContainsAny(host, ":/@[] \t") {
		return Authority{}, fmt.Errorf("%s %q: must be name or name:port, with brackets around an IPv6 address", where, name)
	}
	return Authority{strings.ToLower(host), uint16(n)}, nil
}

// mayBeAddr reports whether host could be an IP address, from its characters. If it
// returns false, as for most names, the caller need not call netip.ParseAddr, which
// allocates an error for each name.
func mayBeAddr(host string) bool {
	return host != "" && (strings.Contains(host, ":") || '0' <= host[len(host)-1] && host[len(host)-1] <= '9')
}

// split splits name into host and port. The result has no brackets around an IPv6 address.
// The default port is 80.
func split(name string) (host, port string) {
	if !strings.Contains(name, ":") {
		return name, "80"
	}
	if host, port, err := net.SplitHostPort(name); err == nil {
		return host, port
	}
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		name = name[1 : len(name)-1]
	}
	return name, "80"
}
