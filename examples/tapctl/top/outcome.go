package top

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
)

// failed reports whether the request has ended and has failed. The rows of the table count
// failures by the same rule.
func (r *record) failed() bool {
	return r.end != nil && (r.code() == 0 || r.end.Failed(r.code()))
}

// code returns the HTTP status, or 0 without a response. It returns 200 if the ResponseInit
// with the status was dropped, but the ResponseEnd shows that there was a response.
func (r *record) code() int {
	// The order matters: an event with the status has precedence over what its absence implies.
	switch {
	case r.response != nil:
		return r.response.Status
	case r.end != nil && r.end.SinceResponseInit != nil:
		return http.StatusOK
	}
	return 0
}

// status returns the result of the request in one or two words. While the request is open,
// the text ends with "…".
func (r *record) status() string {
	text := ""
	if code := r.code(); code != 0 {
		text = strconv.Itoa(code)
	}
	// The order matters: an open request comes first, and then the most specific result.
	switch {
	case r.end == nil && text == "":
		return "…"
	case r.end == nil:
		return text + " …"
	case r.end.ResetCode != nil:
		return join(text, "reset "+r.end.Reset())
	case r.end.GRPCStatus != nil:
		return join(text, r.end.GRPCStatus.String())
	case text == "":
		return "no response"
	}
	return text
}

// join returns code and s with a space, or only s without a code.
func join(code, s string) string {
	if code == "" {
		return s
	}
	return code + " " + s
}

// peer returns the text for a client or endpoint: its label pod, with the port in addr. Without
// the label, it returns addr, or "?" if addr is unknown.
func peer(labels map[string]string, addr netip.AddrPort) string {
	switch pod := labels["pod"]; {
	case pod != "" && addr.IsValid():
		return fmt.Sprintf("%s:%d", pod, addr.Port())
	case pod != "":
		return pod
	case addr.IsValid():
		return addr.String()
	}
	return "?"
}
