package httplayer

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// UpgradeOrigProto sends HTTP/1 requests to another proxy by HTTP/2. The header
// l5d-orig-proto records the version and whether the target was in absolute
// form. [DowngradeOrigProto] is the other end. Place it above an [Endpoint]
// with [WithHTTP2] or [KeepVersion]. HTTP/2 requests pass unchanged. CONNECT
// and upgrade requests pass unchanged and go by HTTP/1.1.
//
// The response is converted back to HTTP/1. A stream reset before the response
// is an error answered with 502, because HTTP/1 has no resets. The layer drops
// l5d-orig-proto headers of applications on both ends.
func UpgradeOrigProto() layer.Layer[*http.Request, *http.Response] {
	return func(next Service) Service { return &upgradeOrigProto{next} }
}

type upgradeOrigProto struct{ Service }

func (l *upgradeOrigProto) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if req.ProtoMajor >= 2 || isTunnel(req) {
		return l.pass(ctx, req)
	}
	out := fork(req)
	for _, name := range [...]string{"Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding"} {
		delete(out.Header, name) // not allowed in HTTP/2
	}
	out.Header[origProtoField] = []string{origProto(req)}
	if req.Host != "" {
		out.Header["Host"] = []string{req.Host} // linkerd's proxies read it
	}
	out.Proto, out.ProtoMajor, out.ProtoMinor = "HTTP/2.0", 2, 0
	out.TransferEncoding = nil
	rsp, err := l.Service.Call(ctx, out)
	if err != nil {
		return rsp, downgradedReset(err)
	}
	if rsp != nil {
		restoreResponse(rsp, req)
	}
	return rsp, nil
}

// pass serves a request that is not upgraded, without l5d-orig-proto in either
// direction.
func (l *upgradeOrigProto) pass(ctx context.Context, req *http.Request) (*http.Response, error) {
	if _, ok := req.Header[origProtoField]; ok {
		out := fork(req)
		delete(out.Header, origProtoField)
		req = out
	}
	rsp, err := l.Service.Call(ctx, req)
	if rsp != nil {
		delete(rsp.Header, origProtoField)
	}
	return rsp, err
}

func (l *upgradeOrigProto) Next() Service { return l.Service }

func (l *upgradeOrigProto) Describe() layer.Node { return layer.Node{Name: "upgrade_orig_proto"} }

const (
	proto11        = "HTTP/1.1"
	proto10        = "HTTP/1.0"
	absoluteSuffix = "; absolute-form"
)

// origProto returns the value of l5d-orig-proto for req.
func origProto(req *http.Request) string {
	ten, absolute := isHTTP10(req), cameAbsolute(req)
	switch {
	case ten && absolute:
		return proto10 + absoluteSuffix
	case ten:
		return proto10
	case absolute:
		return proto11 + absoluteSuffix
	}
	return proto11
}

func isHTTP10(req *http.Request) bool { return req.ProtoMajor == 1 && req.ProtoMinor == 0 }

// restoreResponse converts rsp into a response to the HTTP/1 request req.
func restoreResponse(rsp *http.Response, req *http.Request) {
	ten := isHTTP10(req)
	if said, ok := rsp.Header[origProtoField]; ok {
		if len(said) > 0 {
			ten = strings.HasPrefix(said[0], proto10)
		}
		delete(rsp.Header, origProtoField)
	}
	rsp.Request = req
	rsp.Proto, rsp.ProtoMajor, rsp.ProtoMinor = proto11, 1, 1
	if ten {
		rsp.Proto, rsp.ProtoMinor = proto10, 0
	}
}

// downgradedReset wraps a stream reset of an upgraded request. A rejection
// stays a rejection.
func downgradedReset(err error) error {
	if _, reset := asReset(err); !reset {
		return err
	}
	return &layer.Error{Layer: "upgrade_orig_proto", Err: &downgradedError{err}}
}

// downgradedError is the stream reset of an upgraded HTTP/1 request.
type downgradedError struct{ err error }

func (e *downgradedError) Error() string { return e.err.Error() }
func (e *downgradedError) Unwrap() error { return e.err }

// DowngradeOrigProto restores the HTTP/1 requests that [UpgradeOrigProto] sent
// by HTTP/2. It restores version and form, removes l5d-orig-proto, and adds the
// version to the response. Place it outermost behind a [Handler]. Any other
// request passes without that header.
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

// untagged serves a request that was not upgraded. The response must not carry
// l5d-orig-proto of the application, because the peer would trust it.
func (l *downgradeOrigProto) untagged(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := l.Service.Call(ctx, req)
	if rsp != nil {
		delete(rsp.Header, origProtoField)
	}
	return rsp, err
}

func (l *downgradeOrigProto) Next() Service { return l.Service }

func (l *downgradeOrigProto) Describe() layer.Node { return layer.Node{Name: "downgrade_orig_proto"} }

// isUpgraded reports whether r is an HTTP/1 request that arrived by HTTP/2. It
// shares its connection with requests of other clients.
func isUpgraded(r *http.Request) bool {
	return r.ProtoMajor == 2 && len(r.Header[origProtoField]) > 0
}

// asReset returns the stream reset in err, unless err proves that the request
// was not processed.
func asReset(err error) (*message.ResetError, bool) {
	if _, downgraded := errors.AsType[*downgradedError](err); downgraded || errors.Is(err, layer.ErrNotReady) {
		return nil, false
	}
	return errors.AsType[*message.ResetError](err)
}
