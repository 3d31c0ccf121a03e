package match

import (
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
)

// All matches requests that match every one of ms. Without arguments it matches every request.
func All(ms ...*pb.ObserveRequest_Match) *pb.ObserveRequest_Match {
	return &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_All{All: &pb.ObserveRequest_Match_Seq{Matches: ms}}}
}

// Any matches requests that match at least one of ms. Without arguments it matches no request.
func Any(ms ...*pb.ObserveRequest_Match) *pb.ObserveRequest_Match {
	return &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_Any{Any: &pb.ObserveRequest_Match_Seq{Matches: ms}}}
}

// Not matches the requests that do not match m.
func Not(m *pb.ObserveRequest_Match) *pb.ObserveRequest_Match {
	return &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_Not{Not: m}}
}

// DestinationLabel matches requests to endpoints with the label key=value, such as
// deployment=web. key and value must not be empty.
func DestinationLabel(key, value string) *pb.ObserveRequest_Match {
	return &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_DestinationLabel{
		DestinationLabel: &pb.ObserveRequest_Match_Label{Key: key, Value: value},
	}}
}

// RouteLabel matches requests that use a route with the label key=value. key and value must
// not be empty.
func RouteLabel(key, value string) *pb.ObserveRequest_Match {
	return &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_RouteLabel{
		RouteLabel: &pb.ObserveRequest_Match_Label{Key: key, Value: value},
	}}
}

// Method matches requests with a method equal to name, such as "GET". The comparison is
// case-sensitive.
func Method(name string) *pb.ObserveRequest_Match {
	method := &http_types.HttpMethod{Type: &http_types.HttpMethod_Unregistered{Unregistered: name}}
	if n, ok := http_types.HttpMethod_Registered_value[name]; ok {
		method.Type = &http_types.HttpMethod_Registered_{Registered: http_types.HttpMethod_Registered(n)}
	}
	return http(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Method{Method: method}})
}

// Scheme matches requests with a scheme equal to name, such as "https". The comparison
// ignores case. A request without a scheme counts as "http".
func Scheme(name string) *pb.ObserveRequest_Match {
	scheme := &http_types.Scheme{}
	// Other spellings, such as "HTTPS", are unregistered here. The process that receives the condition ignores case.
	switch name {
	case "http":
		scheme.Type = &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTP}
	case "https":
		scheme.Type = &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTPS}
	default:
		scheme.Type = &http_types.Scheme_Unregistered{Unregistered: name}
	}
	return http(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Scheme{Scheme: scheme}})
}

// Authority matches requests with an authority or Host header equal to s, such as
// "web.example:80".
func Authority(s string) *pb.ObserveRequest_Match { return authority(exact(s)) }

// AuthorityPrefix matches requests with an authority that begins with s.
func AuthorityPrefix(s string) *pb.ObserveRequest_Match { return authority(prefix(s)) }

// Path matches requests with exactly the path s. The query is not part of the path.
func Path(s string) *pb.ObserveRequest_Match { return path(exact(s)) }

// PathPrefix matches requests with a path that begins with s.
func PathPrefix(s string) *pb.ObserveRequest_Match { return path(prefix(s)) }

// Headers returns a value for the field Extract of an ObserveRequest. With it, events
// include header and trailer fields.
func Headers() *pb.ObserveRequest_Extract {
	return &pb.ObserveRequest_Extract{Extract: &pb.ObserveRequest_Extract_Http_{
		Http: &pb.ObserveRequest_Extract_Http{Extract: &pb.ObserveRequest_Extract_Http_Headers_{
			Headers: &pb.ObserveRequest_Extract_Http_Headers{},
		}},
	}}
}

func authority(m *pb.ObserveRequest_Match_Http_StringMatch) *pb.ObserveRequest_Match {
	return http(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Authority{Authority: m}})
}

func path(m *pb.ObserveRequest_Match_Http_StringMatch) *pb.ObserveRequest_Match {
	return http(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Path{Path: m}})
}

func http(m *pb.ObserveRequest_Match_Http) *pb.ObserveRequest_Match {
	return &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_Http_{Http: m}}
}

func exact(s string) *pb.ObserveRequest_Match_Http_StringMatch {
	return &pb.ObserveRequest_Match_Http_StringMatch{Match: &pb.ObserveRequest_Match_Http_StringMatch_Exact{Exact: s}}
}

func prefix(s string) *pb.ObserveRequest_Match_Http_StringMatch {
	return &pb.ObserveRequest_Match_Http_StringMatch{Match: &pb.ObserveRequest_Match_Http_StringMatch_Prefix{Prefix: s}}
}
