package inbound

import (
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"unique"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
)

// logicalKey consists of the properties by which inbound requests are counted. Requests with equal
// keys share a service, which is cached by the key.
type logicalKey struct {
	permit unique.Handle[meters.Permit] // the rule that permitted the request
	dst    netip.AddrPort               // port of the application
	name   string                       // name:port that the client requested; "" if it is not counted
	secure bool                         // the client uses TLS that this proxy terminates
	client string                       // the client's identity, or ""
}

// canonicalHeader contains the service name for which the client's proxy balanced the request.
const canonicalHeader = "L5d-Dst-Canonical"

// logicalKey returns req's key without permit, which the caller adds. Its name is the value of
// canonicalHeader, or else the authority or Host. It stays empty for IP addresses, and if
// [Inbound.counts] returns false.
func (in *Inbound) logicalKey(req *http.Request) (logicalKey, error) {
	dst, ok := tcplayer.OriginalDst(httplayer.ConnFromContext(req.Context()))
	if !ok {
		return logicalKey{}, errors.New("the connection has no original destination")
	}
	c := clientFromContext(req.Context())
	l := logicalKey{dst: dst, secure: c.secure, client: c.id}
	// The header names the service for which the client's proxy balanced. The authority may be another name for it.
	for _, authority := range []string{req.Header.Get(canonicalHeader), httplayer.HTTP{}.Authority(req)} {
		if l.name = nameOf(authority); l.name != "" {
			break
		}
	}
	if !in.counts(l.name) {
		l.name = ""
	}
	return l, nil
}

// counts reports whether requests to name are counted separately: always with AuthorityLabels, and
// otherwise if ProfileSuffixes contains the host.
func (in *Inbound) counts(name string) bool {
	host, _, _ := strings.Cut(name, ":")
	return in.AuthorityLabels || in.Control.ProfileSuffixes.Contains(host)
}

// nameOf returns authority as name:port, with 80 as the default port. It returns "" if authority is
// an IP address or invalid.
func nameOf(authority string) string {
	host, port, ok := strings.Cut(authority, ":") // an IPv6 address leaves an invalid host
	if !ok {
		port = "80"
	}
	host = strings.TrimSuffix(host, ".")
	n, err := strconv.ParseUint(port, 10, 16)
	// A transport header has the same rules for names, so its Validate is used.
	if err != nil || (tcplayer.TransportHeader{Port: uint16(n), Name: host}).Validate() != nil || host == "" {
		return ""
	}
	return strings.ToLower(host) + ":" + strconv.FormatUint(n, 10)
}

// labels returns the metric labels for requests with the key l. Clients choose l.name and could create
// any number of series by it, so it only becomes a label if AuthorityLabels is set.
func (in *Inbound) labels(l logicalKey) meters.Labels {
	labels := meters.Client{Secure: l.secure, ID: l.client}.Labels().With(meters.Target(l.dst)).
		With(l.permit.Value().Labels(l.dst))
	if in.AuthorityLabels {
		labels["authority"] = l.name
	}
	return labels
}

// tapOptions returns the labels in tap for requests with the key l.
func tapOptions(l logicalKey) []tap.Option {
	permit := l.permit.Value()
	return []tap.Option{
		tap.Inbound, tap.WithSourceLabels(sourceLabels(l.secure, l.client)), tap.WithDestination(l.dst, destinationLabels(&permit)),
	}
}

// sourceLabels returns a client's labels in tap. secure tells that it uses TLS, and id is its
// identity or "".
func sourceLabels(secure bool, id string) map[string]string {
	if !secure {
		return map[string]string{"tls": "no_tls_from_remote"}
	}
	labels := map[string]string{"tls": "true"}
	if id != "" {
		labels["client_id"] = id
	}
	return labels
}

// destinationLabels returns the application's labels in tap for requests that permit decides about.
func destinationLabels(permit *meters.Permit) map[string]string {
	labels := permit.Labels(netip.AddrPort{})
	labels["tls"] = "loopback"
	return labels
}
