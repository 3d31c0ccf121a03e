package view

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/gotower/gotower/tap"
)

// record is what the page shows of one request or connection: all events that have arrived so far,
// joined.
type record struct {
	ID   string `json:"id"`
	At   int64  `json:"at"`             // start, in milliseconds since 1970
	Kind string `json:"kind"`           // http or tcp
	Open bool   `json:"open"`           // whether the request or connection has not ended
	Lost bool   `json:"lost,omitempty"` // whether the page does not follow it any more, so that its end is unknown

	Direction         string            `json:"direction"`
	Source            string            `json:"source"`
	Destination       string            `json:"destination"`
	SourceLabels      map[string]string `json:"sourceLabels,omitempty"`
	DestinationLabels map[string]string `json:"destinationLabels,omitempty"`
	RouteLabels       map[string]string `json:"routeLabels,omitempty"`

	Method    string  `json:"method"`
	Scheme    string  `json:"scheme"`
	Authority string  `json:"authority"`
	Path      string  `json:"path"`
	Request   []field `json:"request,omitempty"`

	Status      int           `json:"status"` // 0 without a response
	ResponseAt  time.Duration `json:"responseAt"`
	Response    []field       `json:"response,omitempty"`
	Duration    time.Duration `json:"duration"`
	Bytes       uint64        `json:"bytes"`
	GRPC        string        `json:"grpc,omitempty"`
	Reset       string        `json:"reset,omitempty"`
	Trailers    []field       `json:"trailers,omitempty"`
	Failed      bool          `json:"failed"`
	Explanation []*node       `json:"explanation,omitempty"`

	Sent  uint64 `json:"sent,omitempty"` // bytes sent over a connection; 0 for a request
	Error string `json:"error,omitempty"`

	number  uint64 // position in the order of starts
	shown   bool   // whether the record has been sent to the page
	current bool   // whether the page has all changes of the record
}

// field is the name and the value of a header or trailer field.
type field [2]string

// These are the limits for a list of header or trailer fields: how many there may be, and how
// many bytes.
const (
	maxFields     = 100
	maxFieldsText = 16 << 10
)

// newRecord returns a record for the first event of a request or connection.
func newRecord(e *tap.Event, now time.Time) *record {
	r := &record{
		ID: fmt.Sprintf("%d:%d", e.ID.Base, e.ID.Stream), At: now.UnixMilli(), Kind: "http", Open: true,
		Direction: e.Direction.String(), Source: address(e.Source), Destination: address(e.Destination),
		SourceLabels: labels(e.SourceLabels), DestinationLabels: labels(e.DestinationLabels), RouteLabels: labels(e.RouteLabels),
	}
	if init := e.RequestInit; init != nil {
		r.Method, r.Scheme, r.Authority, r.Path = text(init.Method), text(init.Scheme), text(init.Authority), text(init.Path)
		r.Request = fields(init.Headers)
	} else {
		// An event without a RequestInit is that of a connection.
		r.Kind, r.Method = "tcp", "TCP"
	}
	return r
}

// add copies e's values to the record. It returns true if e is the last event about the request
// or connection.
func (r *record) add(e *tap.Event, now time.Time) (ended bool) {
	if len(e.RouteLabels) > 0 {
		r.RouteLabels = labels(e.RouteLabels)
	}
	switch {
	case e.ResponseInit != nil:
		r.Status, r.ResponseAt = e.ResponseInit.Status, e.ResponseInit.SinceRequestInit
		r.Response = fields(e.ResponseInit.Headers)
		return false
	case e.ResponseEnd != nil:
		r.end(e.ResponseEnd)
	case e.Close != nil:
		r.Duration, r.Bytes, r.Sent = e.Close.SinceOpen, e.Close.Received, e.Close.Sent
		r.Error, r.Explanation = text(e.Close.Err), nodes(e.Close.Explanation)
		r.Failed = r.Error != ""
	default:
		return false
	}
	r.Open = false
	// With a condition on the response, the first event arrives at the end.
	r.At = min(r.At, now.Add(-r.Duration).UnixMilli())
	return true
}

// end adds the last event of a request, which tells its status and durations.
func (r *record) end(end *tap.ResponseEnd) {
	r.Duration, r.Bytes = end.SinceRequestInit, end.Bytes
	r.Trailers, r.Explanation = fields(end.Trailers), nodes(end.Explanation)
	r.Failed = r.Status == 0 || end.Failed(r.Status)
	r.Reset = end.Reset()
	if end.GRPCStatus != nil {
		r.GRPC = end.GRPCStatus.String()
	}
}

// address returns a as text for the page, or "" if it is unknown.
func address(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// labels returns up to maxFields of the labels, abbreviated for the page.
func labels(of map[string]string) map[string]string {
	out := make(map[string]string, min(len(of), maxFields))
	for key, value := range of {
		if len(out) < maxFields {
			out[text(key)] = text(value)
		}
	}
	return out
}

// fields returns the header fields for the page, abbreviated. If they exceed the limits, the last one
// tells how many are missing.
func fields(of []tap.Field) []field {
	var out []field
	room := maxFieldsText
	for _, f := range of {
		value := text(f.Value)
		// The last line takes the place of the field that exceeds a limit.
		if room -= len(f.Name) + len(value); room < 0 || len(out) == maxFields {
			return append(out, field{cut, fmt.Sprintf("and %d more", len(of)-len(out))})
		}
		out = append(out, field{text(f.Name), value})
	}
	return out
}
