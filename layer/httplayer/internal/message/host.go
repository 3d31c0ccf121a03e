package message

import (
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Host returns the host to which req is sent, with its port, and whether it is valid. For a received
// request that is the host it came with. Otherwise, as in net/http, the host is in ASCII (RFC 5891), and
// an IPv6 address carries no zone, because a zone means something only on one machine.
func Host(req *http.Request) (string, bool) {
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	// A request without a RequestURI was not received, but made by this process.
	if req.RequestURI == "" {
		ascii, err := httpguts.PunycodeHostPort(host)
		if err != nil {
			return host, false
		}
		host = withoutZone(ascii)
	}
	return host, ValidHost(host)
}

// withoutZone removes the zone from an IPv6 address in brackets: "[fe80::1%eth0]:80" becomes
// "[fe80::1]:80".
func withoutZone(host string) string {
	address, zone, found := strings.Cut(host, "%")
	_, port, closed := strings.Cut(zone, "]")
	if !found || !closed || host[0] != '[' {
		return host
	}
	return address + "]" + port
}
