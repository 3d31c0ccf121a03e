package file

import (
	"strconv"
	"strings"

	"github.com/gotower/gotower/profiles"
)

// parseGRPCRange takes a status or the first and the last of a range.
func parseGRPCRange(s string) (r profiles.GRPCStatus, ok bool) {
	low, high, ranged := strings.Cut(s, "-")
	if !ranged {
		high = low
	}
	var ok2 bool
	r.Min, ok = parseGRPCStatus(low)
	r.Max, ok2 = parseGRPCStatus(high)
	return r, ok && ok2 && r.Min <= r.Max
}

const aGRPCStatus = "a status of gRPC from 0 to 16, or its name, such as UNAVAILABLE"

// parseGRPCStatus takes the number of a status, and its name in any case.
func parseGRPCStatus(s string) (uint32, bool) {
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return uint32(n), n <= 16
	}
	for n, name := range grpcNames() {
		if strings.EqualFold(s, name) {
			return uint32(n), true
		}
	}
	return 0, false
}

// grpcNames are those of the status codes of gRPC, in their order.
func grpcNames() []string {
	return []string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	}
}
