// A CSI driver whose volumes are folders of one machine. One instance serves the controller's calls, one on
// each node mounts. All share the folder --volumes:
//
//	<id>/name, <id>/bytes    what it was made for, and how large
//	<id>/data/               its content
//	<id>/attached/<node>     the nodes that it is attached to
//	<id>/mounted/<node>      the nodes that have it mounted
//	<id>/grown               the size that a node has grown its file system to
//	violations               a line for each call that would have lost data on a real disk
//
// Such calls are refused where the specification provides an error, and are recorded in any case.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	version = "1.0.0"
	// Of a volume whose claim names no size.
	defaultBytes = 1 << 20
)

var (
	name     = flag.String("name", "folders.csi.manifold.dev", "The driver's name.")
	socket   = flag.String("socket", "", "The Unix socket to serve.")
	volumes  = flag.String("volumes", "", "The folder of all volumes.")
	node     = flag.String("node", "", "The node to mount on; none for the controller's instance.")
	register = flag.String("register", "", "The kubelet's socket of plugin registration to serve, on nodes.")
)

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
}

func main() {
	flag.Parse()
	if *socket == "" || *volumes == "" {
		log.Fatal("--socket and --volumes are required")
	}
	if err := os.MkdirAll(*volumes, 0o755); err != nil {
		log.Fatal(err)
	}
	served := driver{}
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	csi.RegisterIdentityServer(server, served)
	csi.RegisterControllerServer(server, served)
	csi.RegisterNodeServer(server, served)
	ended := make(chan error)
	serve(server, *socket, ended)
	if *register != "" {
		plugins := grpc.NewServer()
		registration.RegisterRegistrationServer(plugins, registrar{})
		serve(plugins, *register, ended)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-ended:
		log.Fatal(err)
	case <-signals:
		server.Stop()
	}
}

func serve(server *grpc.Server, at string, ended chan<- error) {
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		log.Fatal(err)
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", at)
	if err != nil {
		log.Fatal(err)
	}
	go func() { ended <- server.Serve(listener) }()
}

func logged(ctx context.Context, request any, call *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	answer, err := next(ctx, request)
	log.Printf("%s %v: %v", call.FullMethod, request, err)
	return answer, err
}

// registrar introduces the driver to a kubelet.
type registrar struct {
	registration.UnimplementedRegistrationServer
}

func (registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              *name,
		Endpoint:          *socket,
		SupportedVersions: []string{version},
	}, nil
}

func (registrar) NotifyRegistrationStatus(_ context.Context, told *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !told.PluginRegistered {
		log.Printf("the kubelet refuses the driver: %s", told.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// volume is the folder of one.
type volume string

func find(id string) (volume, error) {
	if id == "" || id != filepath.Base(id) {
		return "", status.Errorf(codes.InvalidArgument, "%q is no volume's id", id)
	}
	folder := filepath.Join(*volumes, id)
	if _, err := os.Stat(folder); err != nil {
		return "", status.Errorf(codes.NotFound, "volume %s: %v", id, err)
	}
	return volume(folder), nil
}

func (v volume) file(parts ...string) string {
	return filepath.Join(append([]string{string(v)}, parts...)...)
}

func (v volume) bytes() int64 {
	text, err := os.ReadFile(v.file("bytes"))
	if err != nil {
		return 0
	}
	size, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return size
}

func (v volume) others(list, node string) ([]string, error) {
	entries, err := os.ReadDir(v.file(list))
	var others []string
	for _, entry := range entries {
		if entry.Name() != node {
			others = append(others, entry.Name())
		}
	}
	return others, err
}

func (v volume) has(list, node string) bool {
	_, err := os.Stat(v.file(list, node))
	return err == nil
}

func write(path, text string) error {
	return os.WriteFile(path, []byte(text), 0o644)
}

// violation records that data would have been lost, and says so to the caller.
func violation(format string, about ...any) error {
	text := fmt.Sprintf(format, about...)
	file, err := os.OpenFile(filepath.Join(*volumes, "violations"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = fmt.Fprintln(file, text)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		log.Fatalf("%s could not be recorded: %v", text, err)
	}
	return status.Error(codes.FailedPrecondition, text)
}

func (driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: *name, VendorVersion: version}, nil
}

func (driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}, nil
}

func (driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, one := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: one}},
		})
	}
	return answer, nil
}

func (driver) CreateVolume(_ context.Context, asked *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if asked.Name == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume needs a name")
	}
	// One name gives one volume, however often it is asked for.
	id := fmt.Sprintf("vol-%x", sha256.Sum256([]byte(asked.Name)))[:24]
	made := volume(filepath.Join(*volumes, id))
	size := asked.GetCapacityRange().GetRequiredBytes()
	if size == 0 {
		size = defaultBytes
	}
	if known := made.bytes(); known != 0 {
		if known != size {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s has %d bytes, not %d", id, known, size)
		}
	} else {
		for _, folder := range []string{"data", "attached", "mounted"} {
			if err := os.MkdirAll(made.file(folder), 0o777); err != nil {
				return nil, err
			}
		}
		// The size is written last: with it the volume is complete.
		err := errors.Join(write(made.file("name"), asked.Name), write(made.file("bytes"), strconv.FormatInt(size, 10)))
		if err != nil {
			return nil, err
		}
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, CapacityBytes: size}}, nil
}

func (driver) DeleteVolume(_ context.Context, asked *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	gone, err := find(asked.VolumeId)
	if status.Code(err) == codes.NotFound {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if nodes, err := gone.others("attached", ""); err != nil || len(nodes) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %v (%v)", asked.VolumeId, nodes, err)
	}
	if nodes, _ := gone.others("mounted", ""); len(nodes) > 0 {
		return nil, violation("volume %s was to be deleted while %v had it mounted", asked.VolumeId, nodes)
	}
	if err := os.RemoveAll(string(gone)); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (driver) ValidateVolumeCapabilities(_ context.Context, asked *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if _, err := find(asked.VolumeId); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: asked.VolumeCapabilities,
	}}, nil
}

func isShared(capability *csi.VolumeCapability) bool {
	switch capability.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return true
	default:
		return false
	}
}

func (driver) ControllerPublishVolume(_ context.Context, asked *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	attached, err := find(asked.VolumeId)
	if err != nil {
		return nil, err
	}
	others, err := attached.others("attached", asked.NodeId)
	if err != nil {
		return nil, err
	}
	if len(others) > 0 && !isShared(asked.VolumeCapability) {
		return nil, violation("volume %s was to be attached to %s while %v had it", asked.VolumeId, asked.NodeId, others)
	}
	if err := write(attached.file("attached", asked.NodeId), ""); err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func (driver) ControllerUnpublishVolume(_ context.Context, asked *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	detached, err := find(asked.VolumeId)
	if status.Code(err) == codes.NotFound {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if detached.has("mounted", asked.NodeId) {
		return nil, violation("volume %s was to be detached from %s, which had it mounted", asked.VolumeId, asked.NodeId)
	}
	if err := os.Remove(detached.file("attached", asked.NodeId)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (driver) ControllerExpandVolume(_ context.Context, asked *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	grown, err := find(asked.VolumeId)
	if err != nil {
		return nil, err
	}
	size := max(asked.GetCapacityRange().GetRequiredBytes(), grown.bytes())
	if err := write(grown.file("bytes"), strconv.FormatInt(size, 10)); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}

func (driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: *node}, nil
}

func (driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, one := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: one}},
		})
	}
	return answer, nil
}

// bind mounts a folder at another, unless something is mounted there.
func bind(from, at string, readOnly bool) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	mounted, err := isMounted(at)
	if err != nil || mounted {
		return err
	}
	if err := syscall.Mount(from, at, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", from, at, err)
	}
	if readOnly {
		return syscall.Mount("", at, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	}
	return nil
}

func isMounted(at string) (bool, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == at {
			return true, nil
		}
	}
	return false, nil
}

func unbind(at string) error {
	mounted, err := isMounted(at)
	if err != nil {
		return err
	}
	if mounted {
		if err := syscall.Unmount(at, 0); err != nil {
			return fmt.Errorf("unmounting %s: %w", at, err)
		}
	}
	return nil
}

func (driver) NodeStageVolume(_ context.Context, asked *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	staged, err := find(asked.VolumeId)
	if err != nil {
		return nil, err
	}
	if !staged.has("attached", *node) {
		return nil, violation("volume %s was to be mounted on %s, to which it is not attached", asked.VolumeId, *node)
	}
	// Recorded first: nothing is mounted without a record.
	if err := write(staged.file("mounted", *node), ""); err != nil {
		return nil, err
	}
	if err := bind(staged.file("data"), asked.StagingTargetPath, false); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (driver) NodeUnstageVolume(_ context.Context, asked *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	staged, err := find(asked.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := unbind(asked.StagingTargetPath); err != nil {
		return nil, err
	}
	if err := os.Remove(staged.file("mounted", *node)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (driver) NodePublishVolume(_ context.Context, asked *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := bind(asked.StagingTargetPath, asked.TargetPath, asked.Readonly); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (driver) NodeUnpublishVolume(_ context.Context, asked *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := unbind(asked.TargetPath); err != nil {
		return nil, err
	}
	if err := os.Remove(asked.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (driver) NodeExpandVolume(_ context.Context, asked *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	grown, err := find(asked.VolumeId)
	if err != nil {
		return nil, err
	}
	size := grown.bytes()
	if err := write(grown.file("grown"), strconv.FormatInt(size, 10)); err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}
