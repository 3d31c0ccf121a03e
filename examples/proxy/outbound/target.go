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

// Target returns the target of a request as name:port: the override header, or else
// the authority or Host. The default port is 80.
func Target(req *http.Request) (string, error) {
	name, where := req.Header.Get(overrideHeader), "l5d-dst-override"
	if name == "" {
		name, where = httplayer.Accessor{}.Authority(req), "host"
	}
	if name == "" {
		return "", errors.New("the request has no host")
	}
	host, port := split(name)
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("%s %q: the port must be from 1 to 65535", where, name)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() == "" && strings.Contains(name, "[") == ip.Is6() {
		return net.JoinHostPort(ip.String(), port), nil
	}
	host = strings.TrimSuffix(host, ".")
	if host == "" || strings.HasSuffix(host, ".") || strings.ContainsAny(host, ":/@[] \t") {
		return "", fmt.Errorf("%s %q: must be name or name:port, with brackets around an IPv6 address", where, name)
	}
	return strings.ToLower(host) + ":" + port, nil
}

// split returns host, without brackets, and port.
func split(name string) (host, port string) {
	if host, port, err := net.SplitHostPort(name); err == nil {
		return host, port
	}
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		name = name[1 : len(name)-1]
	}
	return name, "80"
}
