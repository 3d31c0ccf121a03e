package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Check says why who shows a token may not be called name, in a sentence for
// people, or nil.
type Check func(name string, token []byte) error

// Register makes server answer the identity API by a. It refuses with
// InvalidArgument what is no request, and with FailedPrecondition what may not
// be.
func Register(server grpc.ServiceRegistrar, a *Authority, check Check) {
	pb.RegisterIdentityServer(server, &service{authority: a, check: check})
}

type service struct {
	pb.UnimplementedIdentityServer

	authority *Authority
	check     Check
}

// Certify is the one call of the API.
func (s *service) Certify(_ context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
	name := req.GetIdentity()
	csr, err := parse(req)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	for _, err := range []error{match(csr, name), s.authority.owns(name), s.check(name, req.GetToken())} {
		if err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
	}
	// Not before: with a key of a stranger's making it may take long.
	if err := csr.CheckSignature(); err != nil {
		return nil, status.Error(codes.InvalidArgument, fmt.Errorf(badRequest, err).Error())
	}
	chain, err := s.authority.Issue(name, csr.PublicKey)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	rsp := &pb.CertifyResponse{LeafCertificate: chain[0].Raw, ValidUntil: timestamppb.New(chain[0].NotAfter)}
	for _, c := range chain[1:] {
		rsp.IntermediateCertificates = append(rsp.IntermediateCertificates, c.Raw)
	}
	return rsp, nil
}

func parse(req *pb.CertifyRequest) (*x509.CertificateRequest, error) {
	switch {
	case req.GetIdentity() == "":
		return nil, errors.New("the request has no identity")
	case len(req.GetToken()) == 0:
		return nil, errors.New("the request has no token")
	}
	csr, err := x509.ParseCertificateRequest(req.GetCertificateSigningRequest())
	if err != nil {
		return nil, fmt.Errorf(badRequest, err)
	}
	return csr, nil
}

const badRequest = "the certificate signing request must be DER, and signed by its key: %w"

func isURI(name string) bool { return strings.Contains(name, "://") }

// match returns an error unless a request is for name and nothing else.
func match(csr *x509.CertificateRequest, name string) error {
	names := slices.Clone(csr.DNSNames)
	for _, u := range csr.URIs {
		names = append(names, u.String())
	}
	switch {
	case len(csr.EmailAddresses)+len(csr.IPAddresses) > 0:
		return errors.New("the certificate signing request asks for addresses, which nobody here can vouch for")
	case len(names) != 1 || names[0] != name || isURI(name) != (len(csr.URIs) == 1):
		return fmt.Errorf("the certificate signing request is for %q, but the identity asked for is %q: they must be the same one name",
			names, name)
	case csr.Subject.CommonName != "" && csr.Subject.CommonName != name:
		return fmt.Errorf("the common name of the certificate signing request, %q, is not the identity, %q", csr.Subject.CommonName, name)
	}
	return nil
}

// owns returns an error for a name of another trust domain.
func (a *Authority) owns(name string) error {
	ours := a.domain == "" || strings.HasSuffix(name, "."+a.domain)
	if isURI(name) {
		u, err := url.Parse(name)
		ours = err == nil && u.Scheme == "spiffe" && (a.domain == "" || u.Host == a.domain)
	}
	switch {
	case !ours:
		return fmt.Errorf("%q is not of the trust domain %s", name, a.domain)
	case !isURI(name) && strings.Trim(name, inNames) != "":
		return fmt.Errorf("%q is not DNS-like: a wildcard, or what looks like something else, is nobody's name", name)
	}
	return nil
}

const inNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// butOwn is check for everybody but the authority itself, whose name is own: no
// token gets that one.
func butOwn(own string, check Check) Check {
	return func(name string, token []byte) error {
		if own != "" && strings.EqualFold(name, own) {
			return fmt.Errorf("%q is not certified: it is the name of the authority itself", name)
		}
		return check(name, token)
	}
}
