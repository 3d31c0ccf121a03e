package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Certificate manages the certificate of the webhook. The replicas of the webhook share it
// in a Secret, and each of them runs the same loop. No leader is necessary, because the API
// server rejects conflicting writes to the Secret.
//
// A new certificate is in the caBundle for the duration Overlap before the webhook uses it.
// The old certificate remains in the caBundle for the same duration afterwards.
type Certificate struct {
	Client        kubernetes.Interface
	Namespace     string        // of the Secret
	Secret        string        // name of the Secret
	Configuration string        // name of the MutatingWebhookConfiguration
	Names         []string      // DNS names and IP addresses of the webhook
	Lifetime      time.Duration // validity of a new certificate; it is renewed after 2/3 of this time
	Overlap       time.Duration // how long two certificates are trusted together; at least twice Interval
	Interval      time.Duration // between two reads of the Secret and the configuration
	Log           *slog.Logger

	served  atomic.Pointer[tls.Certificate]
	bundle  []byte    // caBundle that the last round wrote or found
	trusted time.Time // when the configuration first had this bundle
}

// Get returns the current certificate. It has the signature of tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if cert := c.served.Load(); cert != nil {
		return cert, nil
	}
	return nil, errors.New("the certificate has not been read yet")
}

// Ready reports whether the webhook has a certificate that the API server trusts.
func (c *Certificate) Ready() bool { return c.served.Load() != nil }

// Run reads, renews and publishes the certificate until ctx ends. There is one round per
// Interval. Run logs the error of a failed round, but not the same error twice in a row.
func (c *Certificate) Run(ctx context.Context) {
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	failed := ""
	for {
		switch err := c.sync(ctx, time.Now()); {
		case ctx.Err() != nil:
			return
		case err == nil:
			failed = ""
		case err.Error() != failed:
			failed = err.Error()
			c.Log.WarnContext(ctx, "the certificate could not be synchronized", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// maxRounds is the maximum number of times that one call of sync writes the Secret.
const maxRounds = 5

// sync does one round. It reads the Secret, writes the caBundle, and serves the current
// certificate. If [state.step] returns a different state, sync writes that state to the
// Secret and repeats these steps.
func (c *Certificate) sync(ctx context.Context, now time.Time) error {
	for range maxRounds {
		secret, s, err := c.read(ctx)
		if err != nil {
			return err
		}
		if cert := s.usable(c.Names, now); cert != nil {
			if err := c.publish(ctx, s.bundle(), now); err != nil {
				return err
			}
			c.served.Store(cert)
		}
		after, err := s.step(c.Names, now, c.trusted, c.Lifetime, c.Overlap)
		if err != nil {
			return err
		}
		if bytes.Equal(after.bundle(), s.bundle()) && bytes.Equal(after.current.cert, s.current.cert) {
			return nil
		}
		secret.Data = after.data()
		if err := c.write(ctx, secret); err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("secret %s: %w", c.Secret, err)
		}
	}
	return errors.New("another program changes the Secret all the time")
}

// read returns the Secret and the state in it. If the Secret is invalid, the state is
// empty. If it does not exist, the state is empty too, and the result is a new Secret for
// [Certificate.write].
func (c *Certificate) read(ctx context.Context) (*corev1.Secret, state, error) {
	secret, err := c.Client.CoreV1().Secrets(c.Namespace).Get(ctx, c.Secret, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: c.Secret, Namespace: c.Namespace}, Type: corev1.SecretTypeTLS,
		}, state{}, nil
	case err != nil:
		return nil, state{}, fmt.Errorf("secret %s: %w", c.Secret, err)
	}
	s, err := newState(secret.Data)
	if err != nil {
		c.Log.WarnContext(ctx, "the Secret is invalid and is replaced", "secret", c.Secret, "error", err)
		return secret, state{}, nil
	}
	return secret, s, nil
}

// write updates the Secret, or creates it if it did not exist when it was read.
func (c *Certificate) write(ctx context.Context, secret *corev1.Secret) (err error) {
	secrets := c.Client.CoreV1().Secrets(c.Namespace)
	if secret.ResourceVersion == "" {
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err == nil {
		c.Log.InfoContext(ctx, "the certificates changed", "secret", c.Secret)
	}
	return err
}

// publish sets the caBundle of each webhook in the configuration to bundle. It stores in
// c.trusted the time from which the API server trusts bundle. This is the argument now if a
// caBundle changes, or if the last call had another bundle. Otherwise c.trusted does not change.
func (c *Certificate) publish(ctx context.Context, bundle []byte, now time.Time) error {
	configurations := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	config, err := configurations.Get(ctx, c.Configuration, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("webhook configuration %s: %w", c.Configuration, err)
	}
	changed := false
	for i := range config.Webhooks {
		if to := &config.Webhooks[i].ClientConfig; !bytes.Equal(to.CABundle, bundle) {
			to.CABundle = bundle
			changed = true
		}
	}
	if changed {
		if _, err := configurations.Update(ctx, config, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("webhook configuration %s: %w", c.Configuration, err)
		}
		c.Log.InfoContext(ctx, "the caBundle changed", "configuration", c.Configuration)
	}
	if changed || !bytes.Equal(bundle, c.bundle) {
		c.bundle, c.trusted = bundle, now
	}
	return nil
}
