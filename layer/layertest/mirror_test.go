package layertest

import (
	"context"
	"io"
	"maps"
	"strings"

	"github.com/gotower/gotower/layer"
)

// forking is the part of an Editor that Mirror uses.
type forking struct {
	layer.Editor[*Request, *Response]
}

func (forking) TeeRequest(req *Request, limit int64, whole func(*Request, bool)) *Request {
	copied := &Request{ID: req.ID, Header: maps.Clone(req.Header)}
	if req.Body == nil {
		whole(copied, true)
		return req
	}
	out := *req
	out.Body = layer.TeeBody(req.Body, -1, limit, func(kept []byte, ok bool) {
		copied.Body = io.NopCloser(strings.NewReader(string(kept)))
		whole(copied, ok)
	})
	return &out
}

// mirrored sends copies to a service that panics.
func mirrored(ctx context.Context) layer.Layer[*Request, *Response] {
	to := layer.Func[*Request, *Response](func(context.Context, *Request) (*Response, error) { panic("a copy") })
	return layer.Mirror(ctx, to, forking{}, layer.MirrorPolicy[*Request]{})
}
