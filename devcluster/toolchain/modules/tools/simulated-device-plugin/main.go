// Simulated-device-plugin replaces NVIDIA's device plugin on nodes without GPUs.
//
// It implements the kubelet's device plugin protocol (v1beta1) and reads the same configuration file
// (CONFIG_FILE: flags.migStrategy, sharing.timeSlicing). The GPUs are in a file next to the kubelet's
// socket instead of a driver.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"sigs.k8s.io/yaml"
)

const (
	hardwareFile = "simulated-gpus.json"
	socketName   = "simulated-nvidia.sock"
	resourceName = "nvidia.com/gpu"
)

// hardware is what the node has: written by the maker of the node.
type hardware struct {
	UUIDs []string `json:"uuids"`
}

// configuration is the part of NVIDIA's plugin configuration (version v1) that is simulated.
type configuration struct {
	Version string `json:"version"`
	Flags   struct {
		MigStrategy string `json:"migStrategy"`
	} `json:"flags"`
	Sharing struct {
		TimeSlicing struct {
			RenameByDefault            bool `json:"renameByDefault"`
			FailRequestsGreaterThanOne bool `json:"failRequestsGreaterThanOne"`
			Resources                  []struct {
				Name     string `json:"name"`
				Replicas int    `json:"replicas"`
			} `json:"resources"`
		} `json:"timeSlicing"`
	} `json:"sharing"`
}

// plugin serves one resource.
type plugin struct {
	api.UnimplementedDevicePluginServer
	resource     string
	devices      []*api.Device
	failAboveOne bool
	stop         chan struct{}
}

func readConfiguration(path string) (configuration, error) {
	var found configuration
	if path == "" {
		return found, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return found, err
	}
	if err := yaml.Unmarshal(text, &found); err != nil {
		return found, fmt.Errorf("%s: %w", path, err)
	}
	if found.Version != "v1" {
		return found, fmt.Errorf("%s: version is %q, and v1 is known", path, found.Version)
	}
	return found, nil
}

// newPlugin applies time slicing to the node's GPUs as NVIDIA's plugin does: every GPU is offered
// `replicas` times, under a name with .shared where renameByDefault says so.
func newPlugin(node hardware, config configuration) *plugin {
	made := &plugin{resource: resourceName, stop: make(chan struct{})}
	replicas := 1
	for _, shared := range config.Sharing.TimeSlicing.Resources {
		if shared.Name == resourceName && shared.Replicas > 1 {
			replicas = shared.Replicas
			made.failAboveOne = config.Sharing.TimeSlicing.FailRequestsGreaterThanOne
			if config.Sharing.TimeSlicing.RenameByDefault {
				made.resource += ".shared"
			}
		}
	}
	for _, uuid := range node.UUIDs {
		for replica := range replicas {
			id := uuid
			if replicas > 1 {
				id += fmt.Sprintf("::%d", replica)
			}
			made.devices = append(made.devices, &api.Device{ID: id, Health: api.Healthy})
		}
	}
	return made
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	select {
	case <-p.stop:
	case <-stream.Context().Done():
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := container.DevicesIds
		if p.failAboveOne && len(ids) > 1 {
			return nil, fmt.Errorf("%d shares of time-sliced GPUs requested, and one is allowed", len(ids))
		}
		gpus := make([]string, len(ids))
		for i, id := range ids {
			gpus[i], _, _ = strings.Cut(id, "::")
		}
		environment := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(gpus, ",")}
		answer.ContainerResponses = append(
			answer.ContainerResponses, &api.ContainerAllocateResponse{Envs: environment},
		)
	}
	return answer, nil
}

// serve listens, registers with the kubelet, and returns when the kubelet has been restarted
// (its socket is another one then) or ctx is done.
func serve(ctx context.Context, made *plugin) error {
	socket := filepath.Join(api.DevicePluginPath, socketName)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, made)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	before, err := os.Stat(api.KubeletSocket)
	if err != nil {
		return err
	}
	if err := register(ctx, made); err != nil {
		return err
	}
	log.Printf("registered %d devices as %s", len(made.devices), made.resource)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		now, err := os.Stat(api.KubeletSocket)
		if err != nil || !os.SameFile(before, now) {
			log.Print("the kubelet was restarted: registering again")
			return nil
		}
		if _, err := os.Stat(socket); err != nil {
			return nil // a starting kubelet removes all sockets in its folder
		}
	}
}

func register(ctx context.Context, made *plugin) error {
	connection, err := grpc.NewClient(
		"unix:"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: socketName, ResourceName: made.resource,
	})
	return err
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	config, err := readConfiguration(os.Getenv("CONFIG_FILE"))
	if err != nil {
		log.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(api.DevicePluginPath, hardwareFile))
	if err != nil {
		log.Fatal(err)
	}
	var node hardware
	if err := json.Unmarshal(text, &node); err != nil {
		log.Fatalf("%s: %v", hardwareFile, err)
	}
	for ctx.Err() == nil {
		if err := serve(ctx, newPlugin(node, config)); err != nil {
			log.Printf("%v: trying again", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}
