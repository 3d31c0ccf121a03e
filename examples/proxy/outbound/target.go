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

// overrideHeader is how an application names a target other than the one that
// it sends the request to. It goes no further than this proxy.
const overrideHeader = "L5d-Dst-Override"

// origProtoHeader is how a proxy of linkerd tells another one that a request of
// HTTP/2 was one of HTTP/1. This proxy keeps the version and sends none, because
// linkerd's proxy takes the Host of such a request from a field named host, and the
// encoder of net/http drops that.
const origProtoHeader = "L5d-Orig-Proto"

// Target returns where a request is to go, as name:port: what its override
// header says, else its authority or Host. The port is 80 unless it says
// another.
func Target(req *http.Request) (string, error) {
	name, where := req.Header.Get(overrideHeader), "l5d-dst-override"
	if name == "" {
		name, where = httplayer.Accessor{}.Authority(req), "host"
	}
	if name == "" {
		return "", errors.New("the request names no host")
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
		return "", fmt.Errorf("%s %q must be name or name:port, and an address of IPv6 is in brackets", where, name)
	}
	return strings.ToLower(host) + ":" + port, nil
}

// split parts a host from its port, and takes the brackets off.
func split(name string) (host, port string) {
	if host, port, err := net.SplitHostPort(name); err == nil {
		return host, port
	}
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		name = name[1 : len(name)-1]
	}
	return name, "80"
}
