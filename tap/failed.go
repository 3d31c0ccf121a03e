package tap

import (
	"strconv"

	"google.golang.org/grpc/codes"
)

// Failed reports whether a response with this HTTP status that ended so is none
// of the successes that linkerd's top counts: it was reset, or its status is
// 5xx, or it has a gRPC status that says that the server failed. Whether there
// was a response at all, SinceResponseInit says.
//
// As with linkerd, a reset is a reset, whoever wanted it: what its caller
// cancelled, such as a hedge that lost, Failed takes for a failure, though
// layer's Classifier counts it against nobody. Its ResetCode is 8, CANCEL.
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

// Reset is what RFC 9113, section 7, calls ResetCode, or its number if that has
// no name there; "" if there is none.
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
