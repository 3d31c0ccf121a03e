package httplayer

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/around"
)

// edits returns a layer that forwards, instead of each request, the request that edit returns for it.
// edit must not change its argument. name and state are what Describe shows.
func edits(name string, state layer.State, edit func(*http.Request) *http.Request) Layer {
	return around.Layer(name, state, func(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
		return next.Call(ctx, edit(req))
	})
}

// OverrideAuthority returns a layer that replaces every request's Host and the host in its URL
// with authority. You need it for endpoints in other clusters. With an empty authority the layer
// does nothing.
func OverrideAuthority(authority string) layer.Layer[*http.Request, *http.Response] {
	if authority == "" {
		return func(next Service) Service { return next }
	}
	edit := func(req *http.Request) *http.Request {
		out := fork(req)
		delete(out.Header, "Host")
		out.Host, out.URL = authority, withHost(req.URL, authority)
		return out
	}
	return edits("override_authority", layer.State{{Key: "authority", Value: authority}}, edit)
}

// StripHeader returns a layer that removes the named headers and trailers from every request, such as
// those that are for this process only. The layer should be directly above the endpoint, so that a
// rejected request keeps its headers for the next endpoint. The layer forwards a request unchanged if
// Trailer is nil and none of the headers is present.
func StripHeader(names ...string) layer.Layer[*http.Request, *http.Response] {
	canonical := make([]string, len(names))
	for i, name := range names {
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	drops := func(name string) bool { return slices.Contains(canonical, name) }
	return edits("strip_header", nil, func(req *http.Request) *http.Request { return strip(req, drops) })
}

// strip returns a copy of req without the headers and trailers whose names drops selects. It
// returns req itself if Trailer is nil and none of the headers is present.
func strip(req *http.Request, drops func(name string) bool) *http.Request {
	if req.Trailer == nil && !fields(req.Header).hasName(drops) {
		return req
	}
	out := fork(req)
	removeFields(out, req, drops)
	return out
}

// fork returns a shallow copy of req with its own header map, because layers must not modify the
// request that they receive; see ownHeader.
func fork(req *http.Request) *http.Request {
	out := *req
	out.Header = ownHeader(req)
	return &out
}

// ownHeader returns a copy of req's header map, in which fields can be added, replaced and deleted. The
// two maps share the slices of values, so a slice must be replaced instead of changed. This is cheaper
// than [http.Header.Clone].
func ownHeader(req *http.Request) http.Header {
	if req.Header == nil {
		return make(http.Header)
	}
	return maps.Clone(req.Header)
}

// removeFields removes the headers and trailers whose names drops selects from out, which is a copy of
// received with its own header map. Trailers arrive when a body ends, so out gets its own Trailer map,
// and a body that fills the map at its end.
func removeFields(out, received *http.Request, drops func(name string) bool) {
	maps.DeleteFunc(out.Header, func(name string, _ []string) bool { return drops(name) })
	removeTrailers(out, received, drops)
}

// removeTrailers removes the trailers whose names drops selects from out, which is a copy of received.
// Those of received arrive when its body ends, so out gets its own Trailer map, which its body then fills.
func removeTrailers(out, received *http.Request, drops func(name string) bool) {
	if received.Trailer == nil {
		return
	}
	out.Trailer = received.Trailer.Clone()
	maps.DeleteFunc(out.Trailer, func(name string, _ []string) bool { return drops(name) })
	if out.Trailer != nil && hasBody(out) {
		out.Body = &trailerFilter{wrappedBody{out.Body}, &received.Trailer, &out.Trailer, drops}
	}
}

// trailerFilter wraps a received message's body. When the body ends, it copies the received
// message's trailers to the forwarded message, except those that drops selects.
type trailerFilter struct {
	wrappedBody
	received  *http.Header           // the trailers of the received message
	forwarded *http.Header           // the trailers of the forwarded message
	drops     func(name string) bool // nil drops none
}

// Read reads from the body. At its end, when the trailers have arrived, it forwards those that may be
// forwarded.
func (b *trailerFilter) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		if *b.forwarded == nil && *b.received != nil {
			*b.forwarded = make(http.Header, len(*b.received))
		}
		for name, values := range *b.received {
			if b.drops == nil || !b.drops(name) {
				(*b.forwarded)[name] = values
			}
		}
	}
	return n, err
}
