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

// Check returns nil if the token is valid for the name, or else an error for the client.
type Check func(name string, token []byte) error

// Register adds the identity API of a to server. Invalid requests get InvalidArgument, and
// rejected names FailedPrecondition.
func Register(server grpc.ServiceRegistrar, a *Authority, check Check) {
	pb.RegisterIdentityServer(server, &service{authority: a, check: check})
}

type service struct {
	pb.UnimplementedIdentityServer

	authority *Authority
	check     Check
}

// Certify checks a request and issues a certificate. It is the only method of the API.
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
	// After the other checks, because a malicious key can make it slow.
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
		return nil, errors.New("the request must have an identity")
	case len(req.GetToken()) == 0:
		return nil, errors.New("the request must have a token")
	}
	csr, err := x509.ParseCertificateRequest(req.GetCertificateSigningRequest())
	if err != nil {
		return nil, fmt.Errorf(badRequest, err)
	}
	return csr, nil
}

const badRequest = "the certificate signing request must be DER, signed by its key: %w"

func isURI(name string) bool { return strings.Contains(name, "://") }

// match returns an error if the request csr is for any name other than name.
func match(csr *x509.CertificateRequest, name string) error {
	names := slices.Clone(csr.DNSNames)
	for _, u := range csr.URIs {
		names = append(names, u.String())
	}
	switch {
	case len(csr.EmailAddresses)+len(csr.IPAddresses) > 0:
		return errors.New("the certificate signing request must not contain addresses")
	case len(names) != 1 || names[0] != name || isURI(name) != (len(csr.URIs) == 1):
		return fmt.Errorf("the certificate signing request is for %q, must be for the requested identity %q only",
			names, name)
	case csr.Subject.CommonName != "" && csr.Subject.CommonName != name:
		return fmt.Errorf("the common name of the certificate signing request is %q, must be the identity %q", csr.Subject.CommonName, name)
	}
	return nil
}

// owns returns an error unless name belongs to the trust domain.
func (a *Authority) owns(name string) error {
	ours := a.domain == "" || strings.HasSuffix(name, "."+a.domain)
	if isURI(name) {
		u, err := url.Parse(name)
		ours = err == nil && u.Scheme == "spiffe" && (a.domain == "" || u.Host == a.domain)
	}
	switch {
	case !ours:
		return fmt.Errorf("%q does not belong to the trust domain %s", name, a.domain)
	case !isURI(name) && strings.Trim(name, nameChars) != "":
		return fmt.Errorf("%q must be DNS-like", name)
	}
	return nil
}

const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// butOwn returns a Check that rejects own, the name of the authority itself, and calls
// check for other names.
func butOwn(own string, check Check) Check {
	return func(name string, token []byte) error {
		if own != "" && strings.EqualFold(name, own) {
			return fmt.Errorf("%q is not certified: it is the name of the authority itself", name)
		}
		return check(name, token)
	}
}
