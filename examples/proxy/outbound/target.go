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

// overrideHeader is the header by which an application names a target that differs
// from the authority. It is removed from requests.
const overrideHeader = "L5d-Dst-Override"

// origProtoHeader is the header by which linkerd's proxy marks an HTTP/2 request that was
// HTTP/1. This proxy keeps the HTTP version of requests instead.
const origProtoHeader = "L5d-Orig-Proto"

// Authority is the target of a request: a name in lower case, or an address. It is a key
// that needs no allocation.
type Authority struct {
	Host string // an IPv6 address is without brackets
	Port uint16
}

// String returns name:port.
func (a Authority) String() string { return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port))) }

// Target returns the target of a request: the override header, or else the authority or
// Host. The default port is 80.
func Target(req *http.Request) (Authority, error) {
	name, where := req.Header.Get(overrideHeader), "l5d-dst-override"
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

// mayBeAddr returns false for most names. The error of netip.ParseAddr would be an
// allocation for each request.
func mayBeAddr(host string) bool {
	return host != "" && (strings.Contains(host, ":") || '0' <= host[len(host)-1] && host[len(host)-1] <= '9')
}

// split returns host, without brackets, and port.
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
