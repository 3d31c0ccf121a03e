package main

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
)

// line returns e as one line, in the format of `linkerd viz tap`. If wide is true, the line also
// contains all labels.
func line(e tap.Event, wide bool) string {
	var b strings.Builder
	direction := "???"
	tls := ""
	// The labels of the other side of the proxy tell whether the connection uses TLS.
	switch e.Direction {
	case tap.Inbound:
		direction = "in "
		tls = e.SourceLabels["tls"]
	case tap.Outbound:
		direction = "out"
		tls = e.DestinationLabels["tls"]
	}
	addresses := fmt.Sprintf("proxy=%s src=%s dst=%s tls=%s", direction, addr(e.Source), addr(e.Destination), tls)
	id := fmt.Sprintf("id=%d:%d", e.ID.Base, e.ID.Stream)
	// Exactly one of the events is set.
	switch {
	case e.RequestInit != nil:
		r := e.RequestInit
		fmt.Fprintf(&b, "req %s %s :method=%s :authority=%s :path=%s", id, addresses, r.Method, r.Authority, r.Path)
	case e.ResponseInit != nil:
		r := e.ResponseInit
		fmt.Fprintf(&b, "rsp %s %s :status=%d latency=%dµs", id, addresses, r.Status, r.SinceRequestInit.Microseconds())
	case e.ResponseEnd != nil:
		fmt.Fprintf(&b, "end %s %s%s", id, addresses, ending(e.ResponseEnd))
	case e.Open != nil:
		fmt.Fprintf(&b, "open %s %s", id, addresses)
	case e.Close != nil:
		c := e.Close
		fmt.Fprintf(&b, "close %s %s duration=%dµs sent=%dB received=%dB", id, addresses, c.SinceOpen.Microseconds(), c.Sent, c.Received)
		if c.Err != "" {
			fmt.Fprintf(&b, " error=%q", c.Err)
		}
	default:
		fmt.Fprintf(&b, "unknown %s", addresses)
	}
	// Labels follow after everything else, as in linkerd.
	if wide {
		labels(&b, "src", e.SourceLabels)
		labels(&b, "dst", e.DestinationLabels)
		labels(&b, "rt", e.RouteLabels)
	}
	return text.Clean(b.String())
}

// ending returns what the line about the end of a response contains after the addresses.
func ending(r *tap.ResponseEnd) string {
	var status string
	switch {
	case r.GRPCStatus != nil:
		status = fmt.Sprintf(" grpc-status=%s", *r.GRPCStatus)
	case r.ResetCode != nil:
		status = fmt.Sprintf(" reset-error=%d", *r.ResetCode)
	}
	// The duration counts from the response, if there was one.
	took := r.SinceRequestInit
	if r.SinceResponseInit != nil {
		took = *r.SinceResponseInit
	}
	return fmt.Sprintf("%s duration=%dµs response-length=%dB", status, took.Microseconds(), r.Bytes)
}

// addr returns the text of an address. It returns "" for an unknown address, as linkerd
// does.
func addr(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// labels appends the labels to b, ordered by key. The keys begin with prefix.
func labels(b *strings.Builder, prefix string, l map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(b, " %s_%s=%s", prefix, k, l[k])
	}
}

// writeMore writes the parts of e that do not fit into its line: the bodies and the explanation.
// It writes nothing unless e ends a request or connection.
func writeMore(w io.Writer, e tap.Event) error {
	var b strings.Builder
	var explanation []layer.Node
	switch {
	case e.ResponseEnd != nil:
		writeBody(&b, "request-body", e.ResponseEnd.RequestBody)
		writeBody(&b, "response-body", e.ResponseEnd.ResponseBody)
		// A request ends with its response, and a connection when it is closed.
		explanation = e.ResponseEnd.Explanation
	case e.Close != nil:
		explanation = e.Close.Explanation
	}
	for _, n := range explanation {
		writeNode(&b, "    ", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeBody writes the recorded part of a body on one line. A nil body was not recorded.
func writeBody(b *strings.Builder, name string, body *tap.Body) {
	if body == nil {
		return
	}
	more := ""
	if body.Cut {
		more = " …"
	}
	fmt.Fprintf(b, "    %s=%s%s\n", name, strconv.Quote(string(body.Data)), more)
}

// writeNode writes n, a node in a request's explanation, then its children with a deeper indent,
// and last the service that n wraps, with the same indent as n.
func writeNode(b *strings.Builder, indent string, n layer.Node) {
	parts := append(make([]string, 0, 1+len(n.State)), n.Name)
	for _, a := range n.State {
		parts = append(parts, fmt.Sprintf("%s=%v", a.Key, a.Value))
	}
	fmt.Fprintf(b, "%s%s\n", indent, text.Clean(strings.Join(parts, " ")))
	for _, c := range n.Children {
		writeNode(b, indent+"  ", c)
	}
	if n.Next != nil {
		writeNode(b, indent, *n.Next)
	}
}
