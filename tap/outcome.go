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

// outcome is a condition on the end of a request or connection. It is met if the end matches each
// field that is set.
type outcome struct {
	lo, hi   int      // range of HTTP statuses; 0 means any
	statuses []uint32 // gRPC statuses; empty means any
	failures bool     // only failures match, including the lack of a response
	// slower is the duration that the request or connection must exceed. A negative value
	// means any duration.
	slower time.Duration
}

// outcomeOf validates m and converts it to an outcome. It returns nil if m is nil, because the
// watcher then sets no condition on the outcome.
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
	case hi > 999:
		return nil, fmt.Errorf("response.max_status: %d is not a status", hi)
	case lo != 0 && (lo > maxStatus || hi < minStatus):
		return nil, fmt.Errorf("response: no response has a status from %d to %d: a status is from %d to %d", lo, hi, minStatus, maxStatus)
	case slices.ContainsFunc(m.GetGrpcStatus(), func(code uint32) bool { return code > uint32(codes.Unauthenticated) }):
		return nil, fmt.Errorf("response.grpc_status: %v: a code of gRPC is from 0 to %d", m.GetGrpcStatus(), codes.Unauthenticated)
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
	minStatus   = 100 // the statuses of HTTP (RFC 9110, section 15)
	maxStatus   = 599
	maxStatuses = 100 // limit of gRPC statuses in one condition
)

// holds reports whether the outcome of a request meets the condition o. end is the last event, and
// status the HTTP status, or 0 without a response. Each case is a reason why not.
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

// statusLeft is the status of a request whose client left before the response.
const statusLeft = 499

// Failed reports whether a request that ended with r has failed, as linkerd's top defines it.
// status is the response's HTTP status, or 0 without one. A request has failed if ResetCode is not
// nil, or if status is 500 or more. It has also failed with the gRPC status Unknown,
// DeadlineExceeded, Internal, Unavailable or DataLoss.
//
// A request whose client left before the response ends with the status 499 and has not failed.
// Another request that the caller canceled, such as the losing side of a hedge, ends with the
// ResetCode 8 (CANCEL) and has failed. Failed returns false for a request without a response and
// without a ResetCode. To find such requests, check whether SinceResponseInit is nil.
func (r *ResponseEnd) Failed(status int) bool {
	switch {
	case status == statusLeft:
		return false
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
