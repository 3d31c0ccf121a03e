package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/gotower/gotower/internal/caller"
)

// Check returns nil if a client with this token may have a certificate for name. Otherwise
// it returns an error, which is sent to the client. ctx ends when the client cancels its
// request.
type Check func(ctx context.Context, name string, token []byte) error

// Register adds the authority's identity API to server. check validates the clients' tokens. An invalid request
// fails with InvalidArgument. A request fails with FailedPrecondition if its name is not allowed or differs
// from the name in its certificate signing request, or if the key there is too weak. An error of check without
// a gRPC status gets the same code.
//
// An IP address may cause 100 failures with these two codes at once, and ten per second after that. Further
// requests from the address fail with ResourceExhausted.
func Register(server grpc.ServiceRegistrar, a *Authority, check Check) {
	pb.RegisterIdentityServer(server, &service{authority: a, check: check})
}

// service implements the identity API.
type service struct {
	pb.UnimplementedIdentityServer

	authority *Authority
	check     Check
	failures  failures
}

// Certify is the only method of the identity API. It returns a certificate for the name in
// req, or an error if the request is invalid or not permitted.
func (s *service) Certify(ctx context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
	client := clientOf(ctx)
	// Reject before the request costs anything.
	if s.failures.exceeded(client) {
		return nil, status.Error(codes.ResourceExhausted, "too many requests of this address have failed")
	}
	rsp, err := s.certify(ctx, req)
	// Only these codes are the client's fault.
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		s.failures.add(client)
	}
	return rsp, err
}

// certify does what Certify documents, without counting failures.
func (s *service) certify(ctx context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
	name := req.GetIdentity()
	csr, err := parse(req)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	// The order matters: cheap checks come first, and the token may have to be validated by another server.
	for _, check := range []func() error{
		func() error { return match(csr, name) },
		func() error { return s.authority.owns(name) },
		func() error { return checkKey(csr.PublicKey) },
		func() error { return s.check(ctx, name, req.GetToken()) },
	} {
		if err := check(); err != nil {
			return nil, withCode(codes.FailedPrecondition, err)
		}
	}
	// After the other checks, because a malicious key can make it slow.
	if err := csr.CheckSignature(); err != nil {
		return nil, status.Error(codes.InvalidArgument, fmt.Errorf(badRequest, err).Error())
	}
	// An authority without an issuer will have one soon, so clients should retry.
	chain, err := s.authority.Issue(name, csr.PublicKey)
	switch {
	case errors.Is(err, ErrNoIssuer):
		return nil, status.Error(codes.Unavailable, err.Error())
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	}
	// The chain begins with the client's certificate.
	rsp := &pb.CertifyResponse{LeafCertificate: chain[0].Raw, ValidUntil: timestamppb.New(chain[0].NotAfter)}
	for _, c := range chain[1:] {
		rsp.IntermediateCertificates = append(rsp.IntermediateCertificates, c.Raw)
	}
	return rsp, nil
}

// withCode returns err as a gRPC status. If err carries no status, the code is the given one.
func withCode(code codes.Code, err error) error {
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.Error(code, err.Error())
}

// parse returns the certificate signing request in req. It returns an error if a field of
// req is missing or invalid.
func parse(req *pb.CertifyRequest) (*x509.CertificateRequest, error) {
	switch {
	case req.GetIdentity() == "":
		return nil, errors.New("the request must have an identity")
	case len(req.GetToken()) == 0:
		return nil, errors.New("the request must have a token")
	}
	// The signature is checked later, because it may be slow.
	csr, err := x509.ParseCertificateRequest(req.GetCertificateSigningRequest())
	if err != nil {
		return nil, fmt.Errorf(badRequest, err)
	}
	return csr, nil
}

// badRequest is the format of an error about a certificate signing request.
const badRequest = "the certificate signing request must be DER, signed by its key: %w"

// isURI reports whether name is a URI. Other names are DNS-like.
func isURI(name string) bool { return strings.Contains(name, "://") }

// match returns an error unless csr requests a certificate for name and for nothing else.
func match(csr *x509.CertificateRequest, name string) error {
	// A request may contain names in several places, of which only one is allowed.
	names := slices.Clone(csr.DNSNames)
	for _, u := range csr.URIs {
		names = append(names, u.String())
	}
	switch {
	case len(csr.EmailAddresses)+len(csr.IPAddresses) > 0:
		return errors.New("the certificate signing request must not contain addresses")
	// The kind of the name must match, because a URI may be written as a DNS name.
	case len(names) != 1 || names[0] != name || isURI(name) != (len(csr.URIs) == 1):
		return fmt.Errorf("the certificate signing request is for %q, must be for the requested identity %q only",
			names, name)
	// The common name is obsolete, but some programs still read it.
	case csr.Subject.CommonName != "" && csr.Subject.CommonName != name:
		return fmt.Errorf("the common name of the certificate signing request is %q, must be the identity %q", csr.Subject.CommonName, name)
	}
	return nil
}

// owns returns an error unless name belongs to the trust domain of the authority. A name that is
// not a SPIFFE ID must be DNS-like.
func (a *Authority) owns(name string) error {
	// The dot makes sure that the domain matches as a whole.
	ours := a.domain == "" || strings.HasSuffix(name, "."+a.domain)
	if isURI(name) {
		domain, err := trustDomainOf(name)
		if err != nil {
			return fmt.Errorf("%q must be a SPIFFE ID: %w", name, err)
		}
		ours = a.domain == "" || domain == a.domain
	}
	switch {
	case !isURI(name) && !caller.IsDNS(name):
		return fmt.Errorf("%q must be DNS-like", name)
	case !ours:
		return fmt.Errorf("%q does not belong to the trust domain %s", name, a.domain)
	}
	return nil
}

// exceptServer returns a Check that rejects serverName, the name of the authority's TLS server. For all other
// names, it calls check. If serverName is empty, it calls check for every name.
func exceptServer(serverName string, check Check) Check {
	return func(ctx context.Context, name string, token []byte) error {
		// Names are not case-sensitive.
		if serverName != "" && strings.EqualFold(name, serverName) {
			return fmt.Errorf("%q is not certified: it is the name of the authority itself", name)
		}
		return check(ctx, name, token)
	}
}
