package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/examples/tapctl/trust"
)

// advised is an error with what to do about it.
type advised struct {
	advice string
	err    error
}

func (a *advised) Error() string { return fmt.Sprintf("%v. %s", a.err, a.advice) }

func (a *advised) Unwrap() error { return a.err }

// advise says what to do about errors that people meet, and leaves out what
// only gRPC wants to know. What others said is in one line then, and fit to be
// shown.
func advise(err error) error {
	var s interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &s) {
		return err
	}
	st := s.GRPCStatus()
	if told, ok := trust.Told(reason(st.Message())); ok {
		return &short{named(err, told), err}
	}
	why := advice(st.Code(), st.Message())
	if why == "" {
		return &short{text.Clean(err.Error()), err}
	}
	return &advised{why, &short{named(err, reason(st.Message())), err}}
}

// named puts before what was said the name of the process that err begins with.
func named(err error, said string) string {
	if name, _, ok := strings.Cut(err.Error(), ": "); ok {
		return name + ": " + said
	}
	return said
}

// short is an error that says less.
type short struct {
	text string
	err  error
}

func (s *short) Error() string { return s.text }

func (s *short) Unwrap() error { return s.err }

// reason is what somebody else than gRPC said, in one line.
func reason(said string) string {
	if _, desc, ok := strings.Cut(said, `desc = "`); ok {
		if s, err := strconv.Unquote(`"` + strings.TrimSuffix(desc, `"`) + `"`); err == nil {
			said = s
		}
	}
	said = strings.TrimPrefix(said, "transport: Error while dialing: ")
	return text.Clean(strings.TrimPrefix(said, "tap: "))
}

// adviceIdentity is about who may watch: those whom linkerd's proxies, and
// programs of gotower, were told to let.
func adviceIdentity(said string) string {
	switch {
	case strings.Contains(said, "may not watch"), strings.Contains(said, "Unauthorized peer"):
		return "Show the certificate of a name that it allows (--cert), or have it allow yours:" +
			" LINKERD2_PROXY_TAP_SVC_NAME, tap.WithAllowedIdentities(name)"
	case strings.Contains(said, "no verified certificate"), strings.Contains(said, "not_provided_by_remote"):
		return trust.AdviceShow
	}
	return "You may not watch there: in clear, tap answers on its own machine alone. Go there," +
		" or in a cluster: kubectl port-forward POD 4190; or come by TLS with a name that it allows: --cacert FILE --cert FILE"
}

func advice(code codes.Code, said string) string {
	switch code {
	case codes.Unavailable:
		if strings.Contains(said, "preface") {
			return "Something is there, but it does not speak gRPC: is this the tap port, and not the port for requests?" +
				" If it is served by TLS: --cacert FILE, and --cert FILE to say who you are"
		}
		return "Nothing serves tap there: is the program running, and is this its tap port" +
			" (LINKERD2_PROXY_CONTROL_LISTEN_ADDR, 4190 by default)?"
	case codes.Unimplemented:
		return "A gRPC server is there, but no tap: is this the tap port, and not the port for requests? Is tap on?"
	case codes.Unauthenticated:
		return adviceIdentity(said)
	case codes.PermissionDenied:
		if strings.Contains(said, "bod") {
			return "Leave --body out, or have the program show bodies: tap.NewRegistry(tap.WithBodies(max, redact))."
		}
		return "The value of that header field is a secret there: ask whether it is present (--header NAME), or leave it out."
	case codes.ResourceExhausted:
		return "Too many watch it already: end another tap first."
	case codes.DeadlineExceeded:
		return "Something is there but does not answer as tap does: is it a gRPC server, and is this its tap port?"
	case codes.FailedPrecondition:
		return "The program has to tell its tap.Server what to describe: tap.WithDescribe(func() layer.Node { … })."
	}
	return ""
}
