package httplayer

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer"
)

// UpgradeOrigProto sends HTTP/1 requests to another proxy by HTTP/2, many on
// one connection, with l5d-orig-proto to say what they were: HTTP/1.1 or
// HTTP/1.0, and whether the target was in absolute form. [DowngradeOrigProto] is
// the other end. Put it above an [Endpoint] with [WithHTTP2], which sends CONNECT and
// requests to upgrade their connection, left as they are here, by HTTP/1.1 all
// the same; or above one with [KeepVersion], which goes by the ProtoMajor of a
// request, 2 in the copy that is made here. What is HTTP/2 already stays as it
// is.
//
// The response is made one to HTTP/1 again. Where the stream is reset before
// there is one, the error is answered with 502: an HTTP/1 client knows no
// resets. Neither end's application sees l5d-orig-proto; what it says there
// itself is dropped.
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
		delete(out.Header, name) // HTTP/2 forbids them
	}
	out.Header[origProtoField] = []string{origProto(req)}
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

// pass keeps the field from leaving or coming back where it means nothing.
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

// origProto is what l5d-orig-proto says of req.
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

// restoreResponse makes rsp a response to the HTTP/1 request that was upgraded.
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

// downgradedReset marks the reset of a stream that its client knows nothing of.
// A refusal stays one.
func downgradedReset(err error) error {
	if _, reset := asReset(err); !reset {
		return err
	}
	return &layer.Error{Layer: "upgrade_orig_proto", Err: &downgradedError{err}}
}

// downgradedError is a stream's reset on the way of an HTTP/1 request.
type downgradedError struct{ err error }

func (e *downgradedError) Error() string { return e.err.Error() }
func (e *downgradedError) Unwrap() error { return e.err }

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
