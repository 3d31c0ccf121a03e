package check

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gotower/gotower/examples/inject/injector"
	"github.com/gotower/gotower/examples/install/manifest"
)

// expiresSoon is how much validity must remain to avoid a warning about a trust anchor or the
// issuer.
const expiresSoon = 60 * 24 * time.Hour

// identity returns the checks on the trust anchors and the issuer.
func (c *checker) identity() category {
	const anchorsHint = "provide trust anchors: install -trust-anchors FILE -issuer FILE -issuer-key FILE"
	const issuerHint = "provide an issuer that the trust anchors verify, with a new Secret " + manifest.IssuerSecret
	// Earlier checks store the certificates here, and later ones use them.
	var anchors, issuer []*x509.Certificate
	return category{"linkerd-identity", []check{
		{description: "trust anchors are certificates", hint: anchorsHint, fatal: true, run: func(ctx context.Context) error {
			m, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, injector.AnchorsConfigMap, metav1.GetOptions{})
			if err != nil {
				return err
			}
			// The checks of proxies compare the anchors too.
			c.anchors = []byte(m.Data[injector.AnchorsKey])
			anchors, err = certificates(c.anchors)
			return err
		}},
		{
			description: "trust anchors are within their validity period", hint: anchorsHint,
			run: func(context.Context) error { return valid(anchors, c.Now) },
		},
		{
			description: "trust anchors are valid for at least 60 days", warning: true,
			hint: "add a new trust anchor before the old one expires",
			run:  func(context.Context) error { return valid(anchors, c.Now.Add(expiresSoon)) },
		},
		{description: "issuer is a CA certificate with its key", hint: issuerHint, fatal: true, run: func(ctx context.Context) error {
			s, err := c.Client.CoreV1().Secrets(c.Namespace).Get(ctx, manifest.IssuerSecret, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if _, err := tls.X509KeyPair(s.Data["tls.crt"], s.Data["tls.key"]); err != nil {
				return errors.New("tls.crt and tls.key are not a certificate with its key") // the error may quote the key
			}
			issuer, err = certificates(s.Data["tls.crt"])
			if err == nil && (!issuer[0].IsCA || issuer[0].KeyUsage&x509.KeyUsageCertSign == 0) {
				err = fmt.Errorf("%s is not a CA with the key usage cert sign", issuer[0].Subject)
			}
			return err
		}},
		{
			description: "issuer is within its validity period", hint: issuerHint,
			run: func(context.Context) error { return valid(issuer[:1], c.Now) },
		},
		{
			description: "issuer is valid for at least 60 days", hint: "replace the Secret " + manifest.IssuerSecret + " before it expires",
			warning: true, run: func(context.Context) error { return valid(issuer[:1], c.Now.Add(expiresSoon)) },
		},
		{
			description: "issuer is verified by the trust anchors", hint: issuerHint,
			run: func(context.Context) error { return verify(issuer, anchors, "", c.Now) },
		},
	}}
}

// webhooks returns the checks on both webhook configurations and their certificates.
func (c *checker) webhooks() category {
	// The check of the mutating webhook stores its failurePolicy here, for the last check.
	var policy *admissionregistrationv1.FailurePolicyType
	// mutating also stores the failure policy, for a check of its own.
	mutating := func(ctx context.Context) (all []admissionregistrationv1.WebhookClientConfig, err error) {
		config, err := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().
			Get(ctx, "linkerd-proxy-injector-webhook-config", metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		for _, w := range config.Webhooks {
			all = append(all, w.ClientConfig)
			policy = w.FailurePolicy
		}
		return all, nil
	}
	// validating reads how the API server calls the webhook that validates ServiceProfiles.
	validating := func(ctx context.Context) (all []admissionregistrationv1.WebhookClientConfig, err error) {
		config, err := c.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().
			Get(ctx, "linkerd-sp-validator-webhook-config", metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		for _, w := range config.Webhooks {
			all = append(all, w.ClientConfig)
		}
		return all, nil
	}
	checks := slices.Concat(
		c.webhook("MutatingWebhookConfiguration", "linkerd-proxy-injector", mutating),
		c.webhook("ValidatingWebhookConfiguration", "linkerd-sp-validator", validating),
	)
	return category{"linkerd-webhooks", append(checks, check{
		description: "failurePolicy Fail has several replicas", warning: true,
		hint: "use install -ha, because no pod can be created while the only injector restarts",
		run: func(ctx context.Context) error {
			// With Ignore, pods are created even if the injector does not answer.
			if policy != nil && *policy == admissionregistrationv1.Ignore {
				return nil
			}
			d, err := c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, "linkerd-proxy-injector", metav1.GetOptions{})
			if err == nil && (d.Spec.Replicas == nil || *d.Spec.Replicas < 2) {
				err = errors.New("the injector has one replica")
			}
			return err
		},
	})}
}

// webhook returns the checks on a webhook configuration of the given kind, which must call the
// given Service. clients reads the clients of its webhooks.
func (c *checker) webhook(
	kind, service string, clients func(context.Context) ([]admissionregistrationv1.WebhookClientConfig, error),
) []check {
	logs := "read the log of the injector: kubectl -n " + c.Namespace + " logs deploy/linkerd-proxy-injector"
	name := service + "." + c.Namespace + ".svc"
	// The first two checks set these for those after them. They are fatal, so none follows one that has failed.
	var client admissionregistrationv1.WebhookClientConfig
	var bundle []*x509.Certificate
	return []check{
		{
			description: kind + " calls " + service, fatal: true,
			hint: applyAgain, run: func(ctx context.Context) error {
				all, err := clients(ctx)
				switch {
				case err != nil:
					return err
				case len(all) != 1:
					return fmt.Errorf("it has %d webhooks and must have one", len(all))
				}
				client = all[0]
				// A nil Service means that the webhook is called by URL.
				if s := client.Service; s == nil || s.Name+"."+s.Namespace+".svc" != name {
					return errors.New("it calls another Service than " + name)
				}
				return nil
			},
		},
		{description: "caBundle for " + service + " has certificates", hint: logs, fatal: true, run: func(context.Context) (err error) {
			bundle, err = certificates(client.CABundle)
			return err
		}},
		{description: "certificate of " + service + " is verified by the caBundle", hint: logs, run: func(ctx context.Context) error {
			s, err := c.Client.CoreV1().Secrets(c.Namespace).Get(ctx, service+"-k8s-tls", metav1.GetOptions{})
			if err != nil {
				return err
			}
			serving, err := certificates(s.Data["tls.crt"])
			if err != nil {
				return err
			}
			return verify(serving, bundle, name, c.Now)
		}},
	}
}

// certificates parses PEM. It returns an error unless text contains at least one certificate and
// nothing else.
func certificates(text []byte) (all []*x509.Certificate, err error) {
	// A key among the certificates is a mistake that must not go unnoticed.
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("a block is a %s and must be a certificate", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("certificates in PEM are missing")
	}
	return all, nil
}

// valid returns an error unless all certificates are valid at this time.
func valid(all []*x509.Certificate, now time.Time) error {
	for _, c := range all {
		if now.Before(c.NotBefore) {
			return fmt.Errorf("%s is valid from %s", c.Subject, c.NotBefore.UTC().Format(time.RFC3339))
		}
		if now.After(c.NotAfter) {
			return fmt.Errorf("%s is valid until %s", c.Subject, c.NotAfter.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// verify returns an error unless roots verify chain[0] at the time now, with the help of the
// other certificates in chain. Unless name is empty, chain[0] must be valid for it.
func verify(chain, roots []*x509.Certificate, name string, now time.Time) error {
	// Certificates for any use are accepted, because only the chain matters here.
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), DNSName: name, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, c := range roots {
		options.Roots.AddCert(c)
	}
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(options)
	return err
}
