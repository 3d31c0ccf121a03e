package tap

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/tap/tappb"
)

// outcome is a condition on the end of a request or connection, which must match all fields. A
// field with the zero value matches everything. For slower, a negative value does so instead.
type outcome struct {
	lo, hi   int      // range of HTTP statuses; 0 means any
	statuses []uint32 // gRPC statuses; empty means any
	failures bool
	// slower is the duration that the request or connection must exceed. A negative value
	// means any duration.
	slower time.Duration
}

// outcomeOf validates m and converts it to an outcome. It returns nil if m is nil, because
// a watcher then has no condition on the outcome.
func outcomeOf(m *tappb.ResponseMatch) (*outcome, error) {
	if m == nil {
		return nil, nil //nolint:nilnil // no condition is valid
	}
	lo, hi := m.GetMinStatus(), m.GetMaxStatus()
	switch {
	case lo == 0 && hi != 0, lo != 0 && hi == 0:
		return nil, errors.New("response: min_status and max_status must be set together")
	case lo > hi:
		return nil, fmt.Errorf("response: min_status %d is above max_status %d", lo, hi)
	case len(m.GetGrpcStatus()) > maxStatuses:
		return nil, fmt.Errorf("response.grpc_status: more than %d", maxStatuses)
	case hi > maxStatus:
		return nil, fmt.Errorf("response.max_status: %d is not a status", hi)
	}
	o := &outcome{
		lo: int(lo), hi: int(hi), statuses: slices.Clone(m.GetGrpcStatus()), failures: m.GetFailures(), slower: -1,
	}
	if d := m.GetSlowerThan(); d != nil {
		if o.slower = d.AsDuration(); !d.IsValid() || o.slower < 0 {
			return nil, errors.New("response.slower_than: must not be negative")
		}
	}
	return o, nil
}

const (
	maxStatus   = 999 // largest HTTP status
	maxStatuses = 100 // limit of gRPC statuses in one condition
)

// holds reports whether a request matches the condition o. The argument end is the last event of
// the request. status is the HTTP status, or 0 without a response.
func (o *outcome) holds(status int, end *ResponseEnd) bool {
	switch {
	case o.hi > 0 && (status < o.lo || status > o.hi):
	case len(o.statuses) > 0 && (end.GRPCStatus == nil || !slices.Contains(o.statuses, uint32(*end.GRPCStatus))):
	case o.failures && end.SinceResponseInit != nil && !end.Failed(status):
	case end.SinceRequestInit <= o.slower:
	default:
		return true
	}
	return false
}

// Failed reports whether a request that ended with r has failed, as linkerd's top defines it.
// status is the HTTP status of the response, or 0 without one. A request has failed if ResetCode is
// not nil, or if status is 500 or more. It has also failed with the gRPC status Unknown,
// DeadlineExceeded, Internal, Unavailable or DataLoss.
//
// A request that the caller canceled, such as the losing request of a hedge, has the ResetCode 8
// (CANCEL) and has failed. Failed returns false for a request without a response and without a
// ResetCode. To find such requests, check whether SinceResponseInit is nil.
func (r *ResponseEnd) Failed(status int) bool {
	switch {
	case r.ResetCode != nil, status >= 500:
		return true
	case r.GRPCStatus == nil:
		return false
	}
	switch *r.GRPCStatus {
	case codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

// Reset returns the name of ResetCode in RFC 9113, section 7, such as "CANCEL". For a code
// without a name, it returns the decimal number. It returns "" if ResetCode is nil.
func (r *ResponseEnd) Reset() string {
	if r.ResetCode == nil {
		return ""
	}
	names := [...]string{
		"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
		"FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
		"INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
	}
	if code := *r.ResetCode; int64(code) < int64(len(names)) {
		return names[code]
	}
	return strconv.FormatUint(uint64(*r.ResetCode), 10)
}
