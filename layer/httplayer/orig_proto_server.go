package httplayer

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer"
)

// DowngradeOrigProto makes HTTP/1 requests of those that [UpgradeOrigProto] sent
// by HTTP/2: version and form are as they were, l5d-orig-proto is gone, and the
// response carries the version back. Put it outermost behind a [Handler]. Any
// other request is passed as it is, without that field if it has one, and so is
// one whose field says something unheard of. A request without it costs a
// look-up.
func DowngradeOrigProto() layer.Layer[*http.Request, *http.Response] {
	return func(next Service) Service { return &downgradeOrigProto{next} }
}

type downgradeOrigProto struct{ Service }

func (l *downgradeOrigProto) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	said, ok := req.Header[origProtoField]
	if !ok {
		return l.untagged(ctx, req)
	}
	out := fork(req)
	delete(out.Header, origProtoField)
	if req.ProtoMajor != 2 || len(said) != 1 {
		return l.untagged(ctx, out)
	}
	version, suffix, _ := strings.Cut(said[0], ";")
	switch strings.TrimSpace(version) {
	case proto11:
		out.Proto, out.ProtoMajor, out.ProtoMinor = proto11, 1, 1
	case proto10:
		out.Proto, out.ProtoMajor, out.ProtoMinor = proto10, 1, 0
	default:
		return l.untagged(ctx, out)
	}
	if strings.TrimSpace(suffix) == absoluteSuffix[2:] {
		out.RequestURI = absoluteTarget(req)
	}
	rsp, err := l.Service.Call(ctx, out)
	if rsp != nil && err == nil {
		if rsp.Header == nil {
			rsp.Header = make(http.Header)
		}
		rsp.Header[origProtoField] = []string{out.Proto}
	}
	return rsp, err
}

// untagged serves a request that was not upgraded: an application's own
// l5d-orig-proto would be believed.
func (l *downgradeOrigProto) untagged(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := l.Service.Call(ctx, req)
	if rsp != nil {
		delete(rsp.Header, origProtoField)
	}
	return rsp, err
}

func (l *downgradeOrigProto) Next() Service { return l.Service }

func (l *downgradeOrigProto) Describe() layer.Node { return layer.Node{Name: "downgrade_orig_proto"} }

// isUpgraded reports whether r is an HTTP/1 request that came by HTTP/2: it
// shares its connection with those of other clients.
func isUpgraded(r *http.Request) bool {
	return r.ProtoMajor == 2 && len(r.Header[origProtoField]) > 0
}

// asReset finds the reset of a stream in err, unless the request is untouched.
func asReset(err error) (streamError, bool) {
	if errors.Is(err, layer.ErrNotReady) {
		return streamError{}, false
	}
	return errors.AsType[streamError](err)
}
