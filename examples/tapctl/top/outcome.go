package top

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
)

// failed reports whether the request has ended and the rows do not count it as a success.
func (r *record) failed() bool {
	return r.end != nil && (r.code() == 0 || r.end.Failed(r.code()))
}

// code returns the HTTP status, or 0 without a response. It returns 200 if the event of
// the response was lost but its end shows that it existed.
func (r *record) code() int {
	switch {
	case r.response != nil:
		return r.response.Status
	case r.end != nil && r.end.SinceResponseInit != nil:
		return http.StatusOK
	}
	return 0
}

// status returns the outcome of a request in one or two words.
func (r *record) status() string {
	code := ""
	if r.response != nil {
		code = strconv.Itoa(r.response.Status)
	}
	switch {
	case r.end == nil && code == "":
		return "…"
	case r.end == nil:
		return code + " …"
	case r.end.ResetCode != nil:
		return join(code, "reset "+r.end.Reset())
	case r.end.GRPCStatus != nil:
		return join(code, r.end.GRPCStatus.String())
	case code == "" && r.end.SinceResponseInit == nil:
		return "no response"
	}
	return code
}

func join(code, s string) string {
	if code == "" {
		return s
	}
	return code + " " + s
}

// peer returns the pod and the port of an address, or else the address.
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
