package mesh

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/httplayer/internal/around"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// UpgradeOrigProto returns a layer that sends HTTP/1 requests to another proxy over HTTP/2. The
// header l5d-orig-proto tells the HTTP/1 version, and whether the target was in absolute form;
// [DowngradeOrigProto] in the other proxy restores the request. The layer should be above an
// [httplayer.Endpoint] with [httplayer.WithHTTP2] or [httplayer.WithKeepVersion]. HTTP/2 requests pass unchanged, and so do
// CONNECT and upgrade requests, which use HTTP/1.1.
//
// The layer converts the response back to HTTP/1. If the stream is reset before the response, the
// error is answered with 502, because HTTP/1 has no resets. The layer removes l5d-orig-proto from
// requests and responses if an application has set it.
func UpgradeOrigProto() httplayer.Layer {
	return around.Layer("upgrade_orig_proto", nil, upgradeOrigProto)
}

// upgradeOrigProto is the Call of UpgradeOrigProto's layer.
func upgradeOrigProto(ctx context.Context, req *http.Request, next httplayer.Service) (*http.Response, error) {
	if req.ProtoMajor >= 2 || isTunnel(req) {
		return untagged(ctx, req, next)
	}
	out := without(req, origProtoField)
	message.RemoveHopByHop(out.Header) // not allowed in HTTP/2
	out.Header[origProtoField] = []string{origProto(req)}
	if req.Host != "" {
		out.Header["Host"] = []string{req.Host} // linkerd's proxies read it
	}
	out.Proto, out.ProtoMajor, out.ProtoMinor = "HTTP/2.0", 2, 0
	out.TransferEncoding = nil
	rsp, err := next.Call(ctx, out)
	if err != nil {
		return rsp, withoutReset("upgrade_orig_proto", err)
	}
	if rsp != nil {
		restoreResponse(rsp, req)
	}
	return rsp, nil
}

const (
	proto11        = "HTTP/1.1"
	proto10        = "HTTP/1.0"
	absoluteSuffix = "; absolute-form"
)

// origProto returns the value of l5d-orig-proto for req. This is the version, followed by
// absoluteSuffix if the target was in absolute form.
func origProto(req *http.Request) string {
	version, suffix := proto11, ""
	if isHTTP10(req) {
		version = proto10
	}
	if uri := req.RequestURI; uri != "" && uri[0] != '/' && uri != "*" {
		suffix = absoluteSuffix
	}
	return version + suffix // allocates only with a suffix
}

// isTunnel reports whether req is CONNECT or requests an upgrade.
func isTunnel(req *http.Request) bool {
	return req.Method == http.MethodConnect || len(req.Header["Upgrade"]) > 0
}

func isHTTP10(req *http.Request) bool { return req.ProtoMajor == 1 && req.ProtoMinor == 0 }

// restoreResponse converts rsp to a response to the HTTP/1 request req. The version comes from
// l5d-orig-proto in rsp, or else from req.
func restoreResponse(rsp *http.Response, req *http.Request) {
	ten := isHTTP10(req)
	if values, ok := rsp.Header[origProtoField]; ok {
		if len(values) > 0 {
			ten = strings.HasPrefix(values[0], proto10)
		}
		delete(rsp.Header, origProtoField)
	}
	rsp.Request = req
	rsp.Proto, rsp.ProtoMajor, rsp.ProtoMinor = proto11, 1, 1
	if ten {
		rsp.Proto, rsp.ProtoMinor = proto10, 0
	}
}

// withoutReset turns a stream reset into a plain failure of the endpoint with the same text, because
// the HTTP/1 client of the request cannot get a reset. It returns any other error unchanged, and also a
// reset that is a rejection. name is the name of the layer.
func withoutReset(name string, err error) error {
	if _, reset := errors.AsType[*message.ResetError](err); !reset || errors.Is(err, layer.ErrNotReady) {
		return err
	}
	failure := &httplayer.StatusError{Code: http.StatusBadGateway, Reason: err.Error(), Close: true}
	return &layer.Error{Layer: name, Err: failure}
}

// DowngradeOrigProto returns a layer that restores the HTTP/1 requests that [UpgradeOrigProto] sent
// over HTTP/2. It restores the version and the target's form, removes l5d-orig-proto, and adds the
// version to the response. For other requests, it only removes l5d-orig-proto from the request and
// the response. It must be the first layer in a [httplayer.Server].
func DowngradeOrigProto() httplayer.Layer {
	return around.Layer("downgrade_orig_proto", nil, downgradeOrigProto)
}

// downgradeOrigProto is the Call of DowngradeOrigProto's layer.
func downgradeOrigProto(ctx context.Context, req *http.Request, next httplayer.Service) (*http.Response, error) {
	values := req.Header[origProtoField]
	if req.ProtoMajor != 2 || len(values) != 1 {
		return untagged(ctx, req, next)
	}
	out := without(req, origProtoField)
	version, suffix, _ := strings.Cut(values[0], ";")
	switch strings.TrimSpace(version) {
	case proto11:
		out.Proto, out.ProtoMajor, out.ProtoMinor = proto11, 1, 1
	case proto10:
		out.Proto, out.ProtoMajor, out.ProtoMinor = proto10, 1, 0
	default:
		return untagged(ctx, out, next)
	}
	if strings.TrimSpace(suffix) == absoluteSuffix[2:] {
		out.RequestURI = absolute(req)
	}
	rsp, err := next.Call(ctx, out)
	if err != nil {
		return rsp, withoutReset("downgrade_orig_proto", err)
	}
	if rsp != nil {
		if rsp.Header == nil { // as in a response made by hand
			rsp.Header = make(http.Header)
		}
		rsp.Header[origProtoField] = []string{out.Proto}
	}
	return rsp, nil
}

// absolute returns the target of the received request req in absolute form.
func absolute(req *http.Request) string {
	if !strings.HasPrefix(req.RequestURI, "/") {
		return req.RequestURI
	}
	var read httplayer.HTTP
	return read.Scheme(req) + "://" + read.Authority(req) + req.RequestURI
}

// untagged forwards req to next and removes the header l5d-orig-proto from req and the response,
// because an application may have set it and the peer would trust it.
func untagged(ctx context.Context, req *http.Request, next httplayer.Service) (*http.Response, error) {
	if _, ok := req.Header[origProtoField]; ok {
		req = without(req, origProtoField)
	}
	rsp, err := next.Call(ctx, req)
	if rsp != nil {
		delete(rsp.Header, origProtoField)
	}
	return rsp, err
}
