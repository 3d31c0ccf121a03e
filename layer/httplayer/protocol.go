package httplayer

import (
	"net/http"
	"strconv"

	"github.com/gotower/gotower/layer"
)

// HTTP is the [layer.Protocol] of net/http's messages. It is also their [layer.Accessor] and
// [layer.Editor], and what package tap needs, so that you pass the same value everywhere:
//
//	profiles.WithRouteLayers(httplayer.HTTP{})
//	tap.Layer(registry, httplayer.HTTP{}, tap.Inbound)
//
// [NewStack] sets it. It reads requests that a server received and requests that a client makes. It
// keeps no state, and is safe for concurrent use.
type HTTP struct {
	// InPlace makes EditRequest change the request itself instead of a copy, unless it has trailers. The
	// caller must own the request, and must not send it twice.
	InPlace bool
}

var (
	_ layer.Protocol[*http.Request, *http.Response] = HTTP{}
	_ layer.Accessor[*http.Request, *http.Response] = HTTP{}
	_ layer.Editor[*http.Request, *http.Response]   = HTTP{}
)

// Classify returns the result of the function [Classify].
func (HTTP) Classify(o layer.Outcome[*http.Response]) layer.Class { return Classify(o) }

// Outline returns a short text with r's status, and with its gRPC status if it has one, for errors and
// logs.
func (HTTP) Outline(r *http.Response) string {
	if r == nil {
		return ""
	}
	outline := "status " + strconv.Itoa(r.StatusCode)
	if code, ok := grpcStatus(r, true); ok { // the response has ended
		outline += ", gRPC status " + strconv.FormatUint(uint64(code), 10)
	}
	return outline
}
